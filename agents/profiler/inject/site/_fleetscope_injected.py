"""What is done when an injected program imports jax: the profiler is found, or carried in, and started."""

import os
import sys
from types import ModuleType

_begun = False


def begin() -> None:
    """Once a process, whoever comes first: our sitecustomize, or jax's discovery of plugins."""
    global _begun
    if _begun:
        return
    _begun = True
    try:
        from fleetscope.agents import profiler
    except ImportError:
        _carry()
        from fleetscope.agents import profiler
    running = profiler.start(early=True)
    if running:
        _say("started")
    elif profiler.start.__module__.endswith("absent"):
        _say(f"absent {sys.implementation.cache_tag} ({sys.executable})")
    else:
        _say("off")


def _carry() -> None:
    """An environment without fleetscope: the three packages the profiler lives in, at the folders of the one that
    injected. Nothing is put on sys.path, so nothing else of that environment can be imported by mistake."""
    here = os.path.dirname(os.path.abspath(__file__))
    agents, *native = [part for part in _at_start("FLEETSCOPE_CARRIED").split(os.pathsep) if part] or [
        os.path.dirname(os.path.dirname(os.path.dirname(here)))
    ]
    native = native or [os.path.join(os.path.dirname(agents), "native")]
    for name in [name for name in sys.modules if name == "fleetscope" or name.startswith("fleetscope.")]:
        del sys.modules[name]
    for name, folders in (("fleetscope", []), ("fleetscope.agents", [agents]), ("fleetscope.native", native)):
        package = ModuleType(name)
        package.__path__ = folders
        sys.modules[name] = package
    sys.modules["fleetscope"].agents = sys.modules["fleetscope.agents"]  # type: ignore[attr-defined]
    sys.modules["fleetscope"].native = sys.modules["fleetscope.native"]  # type: ignore[attr-defined]


def _at_start(name: str) -> str:
    """As this Python was started with it: a program may clear its environment before it imports jax."""
    waiting = sys.modules.get("_fleetscope_waiting")
    kept: dict[bytes, bytes] = getattr(waiting, "at_start", {})
    return os.fsdecode(kept.get(name.encode(), b"")) or os.environ.get(name, "")


def _say(word: str) -> None:
    """To the keeper of `fleetscope run`, if there is one on this host; many processes may write at once."""
    report = _at_start("FLEETSCOPE_REPORT")
    if report:
        try:
            file = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            os.write(file, f"{word}\n".encode())
            os.close(file)
        except OSError:
            return
