"""The error tree. Leaves say what a caller can do; numbers come from errors.json, the only place an error is named.

    FleetscopeError
    +-- Retryable       try again later, nothing happened
    |   +-- Backpressure  slow down first
    +-- Permanent       trying again will fail again
    +-- StateUnknown    it may have happened: look before trying again

>>> from fleetscope.schema.errors import ConfigInvalid
>>> str(ConfigInvalid("unknown key 'lag'"))
"FS1001: unknown key 'lag'"
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any


class FleetscopeError(Exception):
    """Root of every error of this project. `number` is its entry in errors.json; the text begins with it."""

    number: int = 0

    def __str__(self) -> str:
        text = super().__str__()
        return f"FS{self.number}: {text}" if self.number else text


class Retryable(FleetscopeError):
    """Nothing happened; the same call may succeed later."""


class Backpressure(Retryable):
    """The callee is full. Slow down, or drop and count."""


class Permanent(FleetscopeError):
    """The same call will fail again."""


class StateUnknown(FleetscopeError):
    """The call may or may not have taken effect. Read the state before repeating it."""


_ACTIONS: dict[str, type[FleetscopeError]] = {
    "retryable": Retryable,
    "backpressure": Backpressure,
    "permanent": Permanent,
    "unknown": StateUnknown,
}


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """name -> entry of errors.json."""
    entries = json.loads((files("fleetscope.schema") / "errors.json").read_text())["errors"]
    return {entry["name"]: entry for entry in entries}


@cache
def _define(name: str) -> type[FleetscopeError]:
    entry = catalogue()[name]
    namespace = {"number": entry["number"], "__doc__": entry["meaning"], "__module__": __name__}
    return type(name, (_ACTIONS[entry["action"]],), namespace)


def __getattr__(name: str) -> type[FleetscopeError]:
    """`from fleetscope.schema.errors import ConfigInvalid`: the class of that entry; instances pickle."""
    try:
        return _define(name)
    except KeyError:
        raise AttributeError(f"errors.json has no error called {name}") from None
