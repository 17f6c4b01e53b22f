"""The profiler's face where our shared object cannot be loaded: everything is accepted, nothing is done."""

from typing import TypeVar

_F = TypeVar("_F")


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def begin(self) -> "_Nothing":
        return self

    def end(self) -> None:
        return None

    def instant(self) -> None:
        return None

    def __call__(self, function: _F, /) -> _F:
        return function


_NOTHING = _Nothing()


def annotate(name: object, /, **args: object) -> _Nothing:
    return _NOTHING


def site(name: object, /, *, level: int = 1, category: str = "", sample: int = 0) -> _Nothing:
    return _NOTHING


def begin(site: object, /) -> _Nothing:
    return _NOTHING


def end(region: object, /) -> None:
    return None


def instant(site: object, /) -> None:
    return None


def step(number: object, /, **args: object) -> _Nothing:
    return _NOTHING


def counter(name: str, value: object, /) -> None:
    return None


def start(*, early: bool = False) -> bool:
    return False


def stop() -> None:
    return None
