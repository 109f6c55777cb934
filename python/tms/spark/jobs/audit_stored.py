"""The blocks of an audit: all that a service has stored, also unreadable messages; from HBase
itself only committed ones.

    fetch fails because of damage ─▶ block by block up to it ─▶ where can be read again?

Invariants

* Unreadable offsets are a range, which ends at the next readable block.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from tms.client.http.transport import HttpTransport, transport_to
from tms.errors import DataCorrupt
from tms.model.message import Fetched, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName
from tms.spark.jobs.audit_checking import Checker, RangeAudit
from tms.spark.source.options import TopicPlace
from tms.spark.source.reader import open_topics
from tms.spark.source.splitting import even_splits
from tms.spark.source.topics import Split

FETCH_BYTES = 8 << 20
_ONE_BLOCK = 1  # a fetch brings at least one


class Unreadable(NamedTuple):
    """Offsets from `start` to before `stop` that the service cannot read, and what it says."""

    start: int
    stop: int
    what: str


def planned(place: TopicPlace, topic: str, at_least: int) -> list[Split]:
    """The ranges of a topic that make a task each. Raises `TopicNotFound`."""
    if place.store:
        with closing(open_topics(place)) as topics:
            starts = topics.offsets(topic, Position.earliest())
            ends = topics.offsets(topic, Position.latest())
            ranges = {p: (min(starts[p], end), end) for p, end in ends.items()}
            return topics.splits(topic, ranges, at_least)
    with closing(transport_to(place.url, token=place.token, tls=place.tls)) as transport:
        name = TopicName.parse(topic)
        starts = transport.offsets(name, Position.earliest(), Isolation.UNCOMMITTED)
        ends = transport.offsets(name, Position.latest(), Isolation.UNCOMMITTED)
    return even_splits(topic, {p: (min(starts[p], end), end) for p, end in ends.items()}, at_least)


def checked(place: TopicPlace, split: Split, dense: bool) -> RangeAudit:
    """The audit of a range; runs in a task."""
    checker = Checker(split.topic, split.partition, split.start, split.stop, dense)
    if place.store:
        with closing(open_topics(place)) as topics:
            try:
                for stored in topics.read(split):
                    checker.add([stored])
            except DataCorrupt as error:
                checker.unreadable(checker.at, split.stop, error.message)
        return checker.ended()
    with closing(transport_to(place.url, token=place.token, tls=place.tls)) as transport:
        for blocks in _Stored(transport, split).pieces():
            if isinstance(blocks, Unreadable):
                checker.unreadable(*blocks)
            else:
                checker.add(blocks)
    return checker.ended()


class _Stored:
    """The blocks that a service has stored in a range."""

    def __init__(self, transport: HttpTransport, split: Split) -> None:
        self._transport = transport
        self._name = TopicName.parse(split.topic)
        self._split = split

    def pieces(self) -> Iterator[list[StoredBlock] | Unreadable]:
        """Blocks, and what is unreadable between them, in order."""
        at, size = self._split.start, FETCH_BYTES
        position = Position.offset(at)
        while at < self._split.stop:
            try:
                fetched = self._fetch(position, size)
            except DataCorrupt as error:
                if size > _ONE_BLOCK:
                    size = _ONE_BLOCK
                    continue
                behind = self._readable_behind(at)
                yield Unreadable(at, behind, error.message)
                at, size = behind, FETCH_BYTES
                position = Position.offset(at)
                continue
            yield fetched.blocks
            at = max(at, fetched.reached[self._split.partition])
            position = fetched.next[self._split.partition]
            if fetched.ended:
                return

    def _readable_behind(self, at: int) -> int:
        """The first offset behind `at` from which can be read, or the end of the range."""
        bad, step = at, 1
        while not self._reads(min(bad + step, self._split.stop)):
            bad = min(bad + step, self._split.stop)
            step *= 2
        good = min(bad + step, self._split.stop)
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._reads(middle):
                good = middle
            else:
                bad = middle
        return good

    def _reads(self, at: int) -> bool:
        if at >= self._split.stop:
            return True
        try:
            self._fetch(Position.offset(at), _ONE_BLOCK)
        except DataCorrupt:
            return False
        return True

    def _fetch(self, position: Position, size: int) -> Fetched:
        positions = [PartitionPosition(self._split.partition, position)]
        return self._transport.fetch(self._name, positions, size, 0, Isolation.UNCOMMITTED)
