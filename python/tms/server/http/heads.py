"""Heads of requests that were parsed before: a client sends the same one again and again.

Invariants

* A head is known by all of its bytes, so it means what it meant when it was parsed.
* What ends a connection, or waits for a word of the service before its body, is always parsed.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tms.server.http.exchange import Exchange

HEADS_MAX = 512
HEAD_BYTES_MAX = 1 << 10  # of one that is worth remembering


class Head(NamedTuple):
    """What is read from a head."""

    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    length: int  # of the body


class KnownHeads:
    """Those that came last, of all connections."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self.get = self._heads.get

    def remember(self, data: bytes, exchange: "Exchange") -> None:
        """This is what was read from the head that `data` begins with."""
        end = data.find(b"\r\n\r\n") + 4
        if 4 <= end <= HEAD_BYTES_MAX and not exchange.expects_continue:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            length = exchange.content_length or 0
            self._heads[data[:end]] = Head(
                exchange.method, exchange.path, exchange.query, exchange.headers.copy(), length
            )
