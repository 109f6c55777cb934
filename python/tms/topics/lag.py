"""The lag of readers, in messages and in time, for many positions at once.

* The lag counts from the first message that a reader of committed ones would get, so a group that
  has read everything has none, whatever was rolled back behind its position.
* Only readable messages count: a message that expired or was truncated is no lag. The lag follows a
  retention within `FRESH_MS`, a truncation at once.
* The owner of a partition computes it: one request for all positions that another instance owns.
* A block is read from the store once for each position of a reader, and once for all positions in
  it that are requested together; the tail is in memory.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from tms.block import read_header
from tms.block.placing import first_from
from tms.errors import DataCorrupt, NotFound, OffsetOutOfRange
from tms.model.ids import MessageId
from tms.model.lag import Lag, LagPlace
from tms.model.message import Fetched, PartitionPosition, StoredBlock
from tms.model.position import LATEST, Position, PositionKind
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName
from tms.runtime.clock import Clock
from tms.topics.fetching import Fetcher
from tms.topics.owners import Peer, SplitByOwner

PLACES_MAX = 50_000
AGAIN_S = 60.0  # the message there may have been erased or compacted since
ASKED_MAX = 10_000  # places in a request to another instance
_NO_ID = MessageId(0, 0)
_WHOLE = (PositionKind.ID, PositionKind.AFTER, PositionKind.OFFSET)  # name one message
_NONE = Lag(0, 0)


class _Place(NamedTuple):
    offset: int
    time_ms: int
    looked_s: float


class Lags:
    """Computes lags. Thread-safe."""

    def __init__(
        self, fetcher: Fetcher, clock: Clock, owner_of: Callable[[TopicName, int], Peer | None]
    ) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._owner_of = owner_of
        self._places: OrderedDict[LagPlace, _Place] = OrderedDict()
        self._lock = threading.Lock()  # guards the places

    def of(self, places: Iterable[LagPlace]) -> dict[LagPlace, Lag | None]:
        """The lag at each place; None where it is unknown because the topic is gone or its
        partition is damaged. Raises `Unavailable`, `StorageUnavailable`."""
        lags: dict[LagPlace, Lag | None] = dict.fromkeys(places)
        parts = SplitByOwner[LagPlace]()
        for (topic, partition), some in _by_partition(lags).items():
            with suppress(NotFound):
                parts.add(self._owner_of(topic, partition), some)
        lags |= zip(parts.here, self.here(parts.here), strict=True)
        for peer, theirs in parts.elsewhere.items():
            for start in range(0, len(theirs), ASKED_MAX):
                asked = theirs[start : start + ASKED_MAX]
                lags |= zip(asked, peer.lags(asked), strict=True)
        return lags

    def here(self, places: Sequence[LagPlace]) -> list[Lag | None]:
        """The lags of partitions that this process owns, in the order of the places. Raises
        `NotOwner`."""
        lags: dict[LagPlace, Lag] = {}
        for (topic, partition), some in _by_partition(places).items():
            with suppress(NotFound, DataCorrupt):
                lags |= self._of_partition(topic, partition, some)
        return [lags.get(place) for place in places]

    def _of_partition(
        self, topic: TopicName, partition: int, places: Iterable[LagPlace]
    ) -> dict[LagPlace, Lag]:
        offsets = self._fetcher.offsets_here(topic, [partition], LATEST, Isolation.COMMITTED)
        end, now_ms = offsets[partition], self._clock.now_ms()
        start = 0
        with suppress(DataCorrupt):  # the first block is damaged; places behind it have a lag
            start = self._fetcher.first_here(topic, partition).offset
        if start >= end:
            return dict.fromkeys(places, _NONE)
        block: StoredBlock | None = None
        lags: dict[LagPlace, Lag] = {}
        for place in sorted(places, key=_in_order):
            at = place.position
            if at.kind is PositionKind.OFFSET and at.number >= end:
                lags[place] = _NONE
                continue
            found = self._known(place, start)
            if found is None:
                offset = None if block is None else _within(block, at)
                if offset is None and (block := self._first(place)) is not None:
                    offset = first_from(block, at)
                if block is not None and offset is not None:
                    found = self._remember(place, offset, block.time_ms)
            messages = 0 if found is None else max(0, end - found.offset)
            if found is None or not messages:
                lags[place] = _NONE
            else:
                lags[place] = Lag(messages, max(0, now_ms - found.time_ms))
        return lags

    def _known(self, place: LagPlace, start: int) -> _Place | None:
        with self._lock:
            known = self._places.get(place)
        if known is None or known.offset < start:
            return None
        return known if self._clock.monotonic_s() - known.looked_s < AGAIN_S else None

    def _remember(self, place: LagPlace, offset: int, time_ms: int) -> _Place:
        found = _Place(offset, time_ms, self._clock.monotonic_s())
        with self._lock:
            self._places.pop(place, None)  # the newest stand last
            self._places[place] = found
            if len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
        return found

    def _first(self, place: LagPlace) -> StoredBlock | None:
        """The first block with a readable message at or after a place. A fetch returns at least one
        block if there is one."""
        try:
            fetched = self._fetch(place, place.position)
        except OffsetOutOfRange as error:
            nearest = error.nearest(place.position.number)
            fetched = self._fetch(place, Position.offset(nearest))
        return fetched.blocks[0] if fetched.blocks else None

    def _fetch(self, place: LagPlace, at: Position) -> Fetched:
        """Fetch about one block."""
        return self._fetcher.fetch(place.topic, [PartitionPosition(place.partition, at)], 1)


def _by_partition(places: Iterable[LagPlace]) -> dict[tuple[TopicName, int], list[LagPlace]]:
    partitions: dict[tuple[TopicName, int], list[LagPlace]] = {}
    for place in places:
        partitions.setdefault((place.topic, place.partition), []).append(place)
    return partitions


def _in_order(place: LagPlace) -> tuple[str, MessageId, int]:
    position = place.position
    return position.kind, position.id or _NO_ID, position.number


def _within(block: StoredBlock, position: Position) -> int | None:
    """The offset of the first message from a position on, if the block certainly has it."""
    if position.kind not in _WHOLE:
        return None
    header = read_header(block.block)
    if position.id is None:
        if not header.base_offset <= position.number < header.base_offset + header.count:
            return None
    else:
        first = block.last_sequence - header.count + 1
        is_in_time = position.id.time_ms == block.time_ms
        if not (is_in_time and first <= position.id.sequence <= block.last_sequence):
            return None
    offset = first_from(block, position)
    return offset if offset < header.base_offset + header.count else None
