"""Recent requests: a repetition gets the answer of the first one, and stores nothing. Stored
requests are read in steps, all of them before the first look-up.

Invariants

* The requests of the last ten minutes are remembered, also over a restart, up to the newest
  `REQUESTS_MAX`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from tms.delayed.entries import Request, RequestState, request_key, split_request_key
from tms.errors import IdempotencyKeyReused
from tms.log.records import decode

REMEMBERED_MS = 600_000
REQUESTS_MAX = 100_000
_DROPPED_MAX = 10_000  # keys of one deletion


class Requests:
    """The recent requests of one topic, oldest first; `stored` returns some rows after a key. Not
    thread-safe."""

    def __init__(
        self, stored: Callable[[bytes], Sequence[tuple[bytes, bytes]]] = lambda after: ()
    ) -> None:
        self._stored = stored
        self._read = b""  # the last key that was read
        self._all_read = False
        self._known: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._gone: list[bytes] = []  # keys of dropped requests

    def find(self, token: bytes, digest: str) -> Request | None:
        """The request that was stored for a token. Raises `IdempotencyKeyReused` if its digest
        differs."""
        self.read_all()
        known = self._known.get(token)
        if known is None:
            return None
        request = decode(known[1], Request, token)
        if request.digest != digest:
            raise IdempotencyKeyReused(
                "This key was used for other delayed messages. Take a new key for each publish, "
                "and repeat it only with the same bytes."
            )
        return request

    def read_some(self) -> bool:
        """Read some stored requests; True if there are more."""
        if not self._all_read:
            rows = self._stored(self._read)
            for key, value in rows:
                self.add(*split_request_key(key), value)
                self._read = key
            self._all_read = not rows
        return not self._all_read

    def read_all(self) -> None:
        """Read all stored requests."""
        while self.read_some():
            pass

    def add(self, made_ms: int, token: bytes, raw: bytes) -> None:
        """Remember a request."""
        if (older := self._known.pop(token, None)) is not None and older[0] != made_ms:
            self._gone.append(request_key(older[0], token))  # it was stored again
        self._known[token] = (made_ms, raw)
        if len(self._known) > REQUESTS_MAX:
            oldest, (when_ms, _) = self._known.popitem(last=False)
            self._gone.append(request_key(when_ms, oldest))

    def discard(self, token: bytes) -> None:
        """Forget a request."""
        self._known.pop(token, None)

    def undecided(self) -> tuple[int, list[tuple[int, bytes, bytes]]]:
        """The number of the last group, and the time, token and row of each request that may not be
        whole: those of that group, and those that an owner has begun to cancel."""
        self.read_all()
        requests = [
            (decode(raw, Request, token), (made_ms, token, raw))
            for token, (made_ms, raw) in self._known.items()
        ]
        newest = max((request.group for request, _ in requests), default=0)
        return newest, [
            row
            for request, row in requests
            if request.state is RequestState.CANCELLED
            or (request.group == newest and request.state is RequestState.NONE)
        ]

    def old(self, now_ms: int) -> list[bytes]:
        """Keys of some requests that need not be remembered any more."""
        while self._known and len(self._gone) < _DROPPED_MAX:
            token, (made_ms, _) = next(iter(self._known.items()))
            if made_ms > now_ms - REMEMBERED_MS:
                break
            del self._known[token]
            self._gone.append(request_key(made_ms, token))
        return list(islice(self._gone, _DROPPED_MAX))

    def dropped(self, count: int) -> None:
        """Drop the first `count` keys of `old`, which were deleted from the store."""
        del self._gone[:count]
