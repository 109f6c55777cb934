"""From a request's path and method to the operation that is meant.

* Paths are matched as they were sent, part by part; names are decoded by whoever needs them, once.
  A part that varies matches whatever stands there: names are checked, not missed.
* A path that exists says all of its methods: in a 405 and to OPTIONS.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tms.api.operation import Operation
from tms.api.routes import MethodNotAllowed
from tms.server.http.exchange import Exchange

Answer = Callable[[Exchange, list[bytes]], Awaitable[None]]


class Route(NamedTuple):
    """An operation, and what answers it, given what varies in the path."""

    operation: Operation
    answer: Answer


class _Node:
    """A part of paths: what may follow it, and what ends there."""

    __slots__ = ("following", "methods", "varying")

    def __init__(self) -> None:
        self.following: dict[bytes, _Node] = {}
        self.varying: _Node | None = None
        self.methods: dict[str, Route] = {}


class RouteTable:
    """All routes of a service."""

    def __init__(self, routes: list[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.operation.segments:
                if segment is not None:
                    node = node.following.setdefault(segment.encode(), _Node())
                else:
                    node.varying = node = node.varying or _Node()
            node.methods[route.operation.method] = route
            if route.operation.method == "GET":
                node.methods["HEAD"] = route

    def find(self, path: bytes) -> tuple[dict[str, Route], list[bytes]]:
        """The routes of a path by their methods, none if it does not exist, and what varies in
        it."""
        node, varying = self._root, []
        for part in path.split(b"/")[1:]:
            following = node.following.get(part)
            if following is None:
                if (following := node.varying) is None:
                    return {}, []
                varying.append(part)
            node = following
        return node.methods, varying


def allowed(methods: dict[str, Route]) -> list[str]:
    """The methods of a path."""
    return [*sorted(methods), "OPTIONS"]


def not_allowed(method: str, methods: dict[str, Route]) -> MethodNotAllowed:
    """The error for a method that a path does not have."""
    names = allowed(methods)
    return MethodNotAllowed(
        f"The method {method} is not for this path; use {', '.join(names[:-1])} or {names[-1]}.",
        allowed=names,
    )
