"""The profiler's face where our shared object cannot be loaded: everything is accepted, nothing is done."""

from typing import Any


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def begin(self, **links: object) -> "_Nothing":
        return self

    def end(self) -> None:
        return None

    def instant(self, **links: object) -> None:
        return None

    def link(self, **links: object) -> None:
        return None

    def __call__(self, function: Any = None, /, **links: object) -> Any:
        return self if function is None else function


_NOTHING = _Nothing()


def annotate(name: object, /, **args: object) -> _Nothing:
    return _NOTHING


def site(name: object, /, *, level: int = 1, category: str = "", sample: int = 0) -> _Nothing:
    return _NOTHING


def begin(site: object, /, **links: object) -> _Nothing:
    return _NOTHING


def end(region: object, /) -> None:
    return None


def instant(site: object, /, **links: object) -> None:
    return None


def link(**links: object) -> None:
    return None


def new_flow() -> int:
    return 0


def step(number: object, /, **args: object) -> _Nothing:
    return _NOTHING


def counter(name: str, value: object, /) -> None:
    return None


def start(*, early: bool = False) -> bool:
    return False


def stop() -> None:
    return None
