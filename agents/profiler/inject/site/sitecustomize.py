"""Runs at the start of every Python under `fleetscope run`: waits for jax, then the user's own sitecustomize runs."""

import sys


def _chain() -> None:
    """The sitecustomize that would have run without ours, from the rest of sys.path."""
    # Ours may stand there twice under two spellings, or another version's: each is passed once.
    passed = sys.__dict__.setdefault("_fleetscope_sites", set())
    passed.add(__file__.rpartition("/")[0])
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec = finder.find_spec("sitecustomize", [part for part in sys.path if part.rstrip("/") not in passed])
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    # Its errors are its own: site prints them, as it would without us.
    spec.loader.exec_module(module)


try:  # noqa: SIM105 - contextlib is no builtin
    import _fleetscope_waiting  # noqa: F401
except Exception:
    pass  # a folder half there: the program runs without us
_chain()
