"""When a consumer follows instead of fetching: at the tail, where it would have waited.

    a fetch has found the end ─▶ the next one asks to follow ─▶ part ─▶ part ─▶ … ─▶ it ends
    anything else is asked for, or it has ended                ─▶ a fetch

Invariants

* A pushed part answers a fetch only if that fetch starts where the previous part ended, with the
  same filter. Otherwise the client closes the stream and fetches. Following therefore returns
  exactly what fetching would.
"""

from collections.abc import Mapping

from tms.api.following import BEAT_S_MIN, Stand
from tms.client.http.exchange import Call, Calls
from tms.client.transport import FetchRequest
from tms.errors import TMSError
from tms.model.message import Fetched
from tms.model.position import Position


class FollowedTail:
    """The end of the newest answer of a channel, if it was the end of the log then, or a part of a
    followed answer."""

    def __init__(self) -> None:
        self.part: object = None  # the answer, of somebody who follows
        self._request: FetchRequest | None = None
        self._call: Call[Fetched] | None = None
        self._next: Mapping[int, Position] = {}
        self._refused = False

    def seen(self, request: FetchRequest, fetched: Fetched, part: object = None) -> Fetched:
        """An answer was taken, `part` of one that goes on."""
        self.part = part
        stand = Stand.of(fetched)
        self._request = request if stand.ended or part is not None else None
        self._next = stand.next
        return fetched

    def call(self, request: FetchRequest, calls: Calls) -> Call[Fetched]:
        """The request that follows from there on; a part is read as the one before it was."""
        if self.part is None or self._call is None:
            self._call = calls.fetch(request, follow=True)
        return self._call

    def refused(self, error: TMSError) -> None:
        """Following came to nothing; unless it may succeed later nobody tries again."""
        self._request = None
        self._refused |= not error.retriable

    def is_at(self, request: FetchRequest) -> bool:
        """True if the fetch goes on there and would wait."""
        before = self._request
        return (
            request.goes_on
            and before is not None
            and not self._refused
            and request.wait_s >= BEAT_S_MIN
            and request.name == before.name
            and request.bytes_max == before.bytes_max
            and request.isolation == before.isolation
            and request.where == before.where
            and dict(request.positions) == self._next
        )
