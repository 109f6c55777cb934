"""The requests of late: a repetition is answered like the first one, and stores nothing.

Invariants

* Those of the last ten minutes are remembered, over restarts too; of more than `REQUESTS_MAX` the
  newest.
"""

from collections import OrderedDict
from itertools import islice

from tms.delay.stored.entries import Request, request_key
from tms.errors import IdempotencyKeyReused
from tms.log.records import decode

REMEMBERED_MS = 600_000
REQUESTS_MAX = 100_000
_DROPPED_MAX = 10_000  # at once


class Requests:
    """The requests of one topic, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._gone: list[bytes] = []  # keys of those that were pushed out

    def find(self, token: bytes, digest: str) -> Request | None:
        """What was stored for a token. Raises `IdempotencyKeyReused` if that was something
        else."""
        known = self._known.get(token)
        if known is None:
            return None
        found = decode(known[1], Request, token)
        if found.digest != digest:
            raise IdempotencyKeyReused(
                "This key was used for other delayed messages. Take a new key for each publish, "
                "and repeat it only with the same bytes."
            )
        return found

    def add(self, made_ms: int, token: bytes, raw: bytes) -> None:
        """Remember a request."""
        self._known[token] = (made_ms, raw)
        if len(self._known) > REQUESTS_MAX:
            oldest, (when_ms, _) = self._known.popitem(last=False)
            self._gone.append(request_key(when_ms, oldest))

    def discard(self, token: bytes) -> None:
        """Forget a request."""
        self._known.pop(token, None)

    def newest_group(self) -> list[tuple[int, bytes, Request]]:
        """The requests that were written last, with when and their tokens."""
        found: list[tuple[int, bytes, Request]] = []
        for token, (made_ms, raw) in self._known.items():
            request = decode(raw, Request, token)
            if found and request.group < found[0][2].group:
                continue
            if found and request.group > found[0][2].group:
                found.clear()
            found.append((made_ms, token, request))
        return found

    def old(self, now_ms: int) -> list[bytes]:
        """The keys of some that need not be remembered any more."""
        while self._known and len(self._gone) < _DROPPED_MAX:
            token, (made_ms, _) = next(iter(self._known.items()))
            if made_ms > now_ms - REMEMBERED_MS:
                break
            del self._known[token]
            self._gone.append(request_key(made_ms, token))
        return list(islice(self._gone, _DROPPED_MAX))

    def dropped(self, count: int) -> None:
        """So many of those that `old` gave are gone from the store."""
        del self._gone[:count]
