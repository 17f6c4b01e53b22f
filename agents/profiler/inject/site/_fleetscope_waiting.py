"""Waits for jax, and tells the keeper of `fleetscope run` that a Python was reached. Imported by our sitecustomize, or
by a line of a .pth file.

Nothing but builtin modules is imported: the budget of a Python that never imports jax is 2 ms, and `importlib.util`
alone costs 5.
"""

import sys


class _Waiting:
    """First on sys.meta_path until somebody imports jax or jaxlib; finds nothing itself."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name != "jax" and name != "jaxlib":
            return
        sys.meta_path.remove(_Waiting)
        try:
            import _fleetscope_injected

            _fleetscope_injected.begin()
        except Exception:
            return  # whatever it was, the program runs without us


at_start: dict[bytes, bytes] = {}
"""What we are told by, for the moment jax comes: the program may have cleared its environment by then."""


def _report() -> None:
    import posix

    for name in (b"FLEETSCOPE_REPORT", b"FLEETSCOPE_CARRIED"):
        if name in posix.environ:
            at_start[name] = posix.environ[name]
    report = at_start.get(b"FLEETSCOPE_REPORT")
    if report:
        # It lies in a folder of everybody's and may have become a pipe since: a daemon outlives its keeper.
        file = posix.open(report, posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK)
        posix.write(file, b"here\n")
        posix.close(file)


sys.meta_path.insert(0, _Waiting)
try:  # noqa: SIM105 - contextlib is no builtin
    _report()
except Exception:
    pass  # the file is another host's: nobody waits for a word of this process
