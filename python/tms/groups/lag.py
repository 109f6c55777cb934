"""How far groups are behind: in messages, and in time.

* The lag counts from the first message that a reader of committed ones would get, so a group that
  has read everything has none, whatever was rolled back behind it.
* A block is read from the store once for each place at which a group stands; the tail is in memory.
"""

from collections import OrderedDict
from typing import NamedTuple

from tms.block.placing import first_from
from tms.clock import Clock
from tms.errors import OffsetOutOfRange
from tms.model.message import Fetched, PartitionPosition
from tms.model.position import Position
from tms.model.transaction import PositionKey
from tms.topics.fetching import Fetcher

PLACES_MAX = 10_000
AGAIN_S = 60.0  # what stood there may have been dropped since
_AT_THE_END = Position.latest()


class Lag(NamedTuple):
    """Messages, and for how long the first of them has been there."""

    messages: int
    ms: int


class _Place(NamedTuple):
    position: Position
    offset: int
    time_ms: int
    looked_s: float


class Lags:
    """Works out lags. For one thread at a time."""

    def __init__(self, fetcher: Fetcher, clock: Clock) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._places: OrderedDict[PositionKey, _Place] = OrderedDict()

    def of(self, key: PositionKey, position: Position | None) -> Lag:
        """How far a group is behind in a partition; without a position it has everything before
        it. Raises `TopicNotFound`."""
        at = position or Position.earliest()
        known, now_s = self._places.get(key), self._clock.monotonic_s()
        fetched = self._fetcher.fetch_cached(key.topic, [PartitionPosition(key.partition, at)], 1)
        if fetched is None and known and known.position == at and now_s - known.looked_s < AGAIN_S:
            end = self._end(key)
            return self._lag(known, end)
        if fetched is None:
            fetched = self._read(key, at)
        if not fetched.blocks:  # the look brings at least one if there is one
            self._places.pop(key, None)
            return Lag(0, 0)
        first = fetched.blocks[0]
        place = _Place(at, first_from(first, at), first.time_ms, now_s)
        self._places[key] = place
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)
        return self._lag(place, fetched.ends[key.partition])

    def _lag(self, place: _Place, end: int) -> Lag:
        return Lag(max(0, end - place.offset), max(0, self._clock.now_ms() - place.time_ms))

    def _end(self, key: PositionKey) -> int:
        return self._fetch(key, _AT_THE_END).ends[key.partition]

    def _read(self, key: PositionKey, at: Position) -> Fetched:
        try:
            return self._fetch(key, at)
        except OffsetOutOfRange as error:
            return self._fetch(key, Position.offset(error.nearest(at.number)))

    def _fetch(self, key: PositionKey, at: Position) -> Fetched:
        """About one block."""
        return self._fetcher.fetch(key.topic, [PartitionPosition(key.partition, at)], 1)
