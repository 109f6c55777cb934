"""Methods for asyncio that are what a synchronous object does, in a thread, with the same types,
and iterations that a time-out does not end.

    class AsyncBus(Derived[Bus]):
        create_topic = in_thread(Bus.create_topic)
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
)
from functools import wraps
from types import AsyncGeneratorType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

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


class Derived(Generic[T]):
    """An object for asyncio that has its synchronous one as `_sync`."""

    def __init__(self, sync: T) -> None:
        self._sync = sync

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"


class Resumable(Protocol):
    """An object whose iterations go on where the last one was left, until the last one was read to
    its end: then it is `_over`."""

    _over: bool


S = TypeVar("S", bound=Resumable)


class ResumedIterator(AsyncIterator[T]):
    """An iteration that goes on with the next message after one `anext` was cancelled, by a
    time-out for example, or has raised; a generator would be at its end."""

    def __init__(self, source: Resumable, iterate: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._source = source
        self._iterate = iterate
        self._now = self._begun()
        self._closed = False

    def _begun(self) -> AsyncGeneratorType[T, None]:
        return cast(AsyncGeneratorType[T, None], self._iterate())

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        ended = self._now.ag_frame is None
        if ended and not self._closed and not self._source._over:  # it was cancelled, or raised
            self._now = self._begun()
        return self._now.__anext__()

    async def aclose(self) -> None:
        """End it."""
        self._closed = True
        await self._now.aclose()


def resumed(
    iterate: Callable[[S], AsyncGenerator[T, None]],
) -> Callable[[S], ResumedIterator[T]]:
    """A method whose iterations are resumed, from an asynchronous generator."""

    @wraps(iterate)
    def derived(self: S) -> ResumedIterator[T]:
        return ResumedIterator(self, lambda: iterate(self))

    return derived
