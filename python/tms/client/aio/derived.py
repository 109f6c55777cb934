"""Methods for asyncio that are what a synchronous object does, in a thread, with the same types.

    class AsyncBus:
        create_topic = in_thread(Bus.create_topic)

The object of such a class has its synchronous one as `_sync`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A coroutine function that calls the method in a thread."""

    @wraps(method)
    async def derived(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._sync, *args, **kwargs)

    return derived


def iterated_in_thread(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """An asynchronous generator that takes what the method yields, one by one in a thread."""

    @wraps(method)
    async def derived(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        following = await asyncio.to_thread(method, self._sync, *args, **kwargs)
        while (value := await asyncio.to_thread(next, following, _END)) is not _END:
            yield value  # type: ignore[misc]  # it is not the mark

    return derived
