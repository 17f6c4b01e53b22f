"""Decorated coroutine and generator functions: the region lasts from the first step of the body to its end."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from fleetscope.native._recorder import Annotation


def wrap(annotation: Annotation, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same kind as `function` (what inspect says of it stays true), which runs inside the region."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with annotation:
                return await function(*args, **kwargs)

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with annotation:
                async for item in function(*args, **kwargs):
                    yield item

        return async_generator

    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with annotation:
            return (yield from function(*args, **kwargs))

    return generator
