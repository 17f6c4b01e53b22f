"""Runs at the start of every Python under `fleetscope run`, and waits there for jax.

Nothing but sys is imported: the budget of a Python that never imports jax is 2 ms, and `importlib.util` alone costs 5.
"""

import sys


def _fleetscope() -> None:
    class Waiting:
        """First on sys.meta_path until somebody imports jax or jaxlib; finds nothing itself."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name != "jax" and name != "jaxlib":
                return
            sys.meta_path.remove(Waiting)
            try:
                from fleetscope.agents import profiler

                profiler.start(early=True)
            except Exception:
                return  # not installed in this Python, or for another one: the program runs without us

    sys.meta_path.insert(0, Waiting)


def _chain() -> None:
    """The sitecustomize that would have run without ours, from the rest of sys.path."""
    here = __file__.rpartition("/")[0]
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec = finder.find_spec("sitecustomize", [part for part in sys.path if part.rstrip("/") != here])
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    # Its errors are its own: site prints them, as it would without us.
    spec.loader.exec_module(module)


try:
    _fleetscope()
except Exception:
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "Waiting"]
_chain()
