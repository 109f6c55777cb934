"""The table of routes: from a request's path and method to its endpoint.

* Paths are matched as they were sent, part by part; an endpoint decodes names once. A variable part
  matches any text: a wrong name is an error, not a missing path.
* An existing path lists all of its methods: in a 405 and to OPTIONS.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from tms.api.operation import Operation
from tms.server.http.exchange import Exchange

Answer = Callable[[Exchange, Sequence[bytes]], Awaitable[None]]
T = TypeVar("T")


class Route(NamedTuple):
    """An operation, and what answers it, given what varies in the path. `by_content`: that also
    routes the request, by its body."""

    operation: Operation
    answer: Answer
    by_content: bool = False


class _Node(Generic[T]):
    """A part of paths: what may follow it, and what ends there."""

    __slots__ = ("following", "methods", "varying")

    def __init__(self) -> None:
        self.following: dict[bytes, _Node[T]] = {}
        self.varying: _Node[T] | None = None
        self.methods: dict[str, T] = {}


class RouteTable(Generic[T]):
    """Routes by path and method; what varies in a path stands in braces."""

    def __init__(self, routes: Iterable[tuple[str, str, T]]) -> None:
        self._root = _Node[T]()
        self.find = lru_cache(1_024)(self._find)
        for method, path, route in routes:
            node = self._root
            for part in path.encode().split(b"/")[1:]:
                if part.startswith(b"{"):
                    node.varying = node = node.varying or _Node()
                else:
                    node = node.following.setdefault(part, _Node())
            node.methods[method] = route

    def _find(self, path: bytes) -> tuple[Mapping[str, T], Sequence[bytes]]:
        """The routes of a path by their methods, none if it does not exist, and what varies in
        it."""
        node, varying = self._root, []
        for part in path.split(b"/")[1:]:
            following = node.following.get(part)
            if following is None:
                if (following := node.varying) is None:
                    return {}, ()
                varying.append(part)
            node = following
        return node.methods, varying
