from typing import Any

def wrap(name: str, source: Any, /) -> Any:
    """A capsule: the wrapped table of a library (path) or a table (capsule). Or a str: why it is better left alone."""

def refused() -> None: ...
def stop(timeout_ms: int, /) -> bool: ...
def counts() -> dict[str, int]: ...
def programs() -> list[tuple[str, int, int]]:
    """(module name, executions launched since the process began, busy ns of its devices while recording)."""

def follow(name: str, /) -> bool:
    """Executions of this module stand for steps in _recorder.executions(); "": of none. False: it was never loaded."""
