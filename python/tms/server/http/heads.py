"""Heads of requests that were parsed before: a client sends the same one again and again.

Invariants

* A head is known by all of its bytes, from the first letter of its method to its first empty line,
  so it means what it meant when it was parsed. One with any other line end is not remembered, nor
  one whose body is of unknown length, waits for a word of the service, or ends the connection.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tms.server.http.exchange import Exchange

HEAD_END = b"\r\n\r\n"
HEADS_MAX = 512
HEAD_BYTES_MAX = 1 << 10  # of one that is worth remembering


class KnownHead(NamedTuple):
    """The parsed parts of a head."""

    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    length: int  # of the body


class KnownHeads:
    """The heads that were parsed last, of all connections."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self.get = self._heads.get

    def remember(self, data: bytes, exchange: "Exchange") -> None:
        """This was read from the head that `data` begins with."""
        end = data.find(HEAD_END) + len(HEAD_END)
        if (
            exchange.content_length is not None
            and not exchange.expects_continue
            and data[:1].isalpha()
            and len(HEAD_END) <= end <= HEAD_BYTES_MAX
            and data.count(b"\n", 0, end) == data.count(b"\r\n", 0, end)
        ):
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[data[:end]] = KnownHead(
                exchange.method,
                exchange.path,
                exchange.query,
                exchange.headers.copy(),
                exchange.content_length,
            )
