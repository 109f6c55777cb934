"""An internal topic that holds what happened to a state machine, in order.

Invariants

* It has one partition; nothing of it expires, and what `keep` makes unneeded is dropped.
* `replay` gives the values in the order in which they were appended; a value is there if its append
  was acknowledged, and may be there if it was not. What is not there comes never.
* A journal that was never appended to has no topic.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tms.block import BlockHeader, Flags, decode, encode
from tms.errors import TopicNotFound
from tms.log.groups import PLAIN, Stamp
from tms.log.pending import PendingAppend
from tms.log.records import FIRST_KEY
from tms.log.recovery import header_of
from tms.log.visibility import Judge
from tms.model.ids import MessageId
from tms.model.message import Appended, NewBlock
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import MESSAGE_BYTES_MAX, Durability, TopicName, TopicSettings
from tms.topics.partitions import PartitionLog, Partitions
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry

READ_BYTES = 8 << 20
TIMEOUT_S = 30.0
_SETTINGS = TopicSettings(1, None, None, Durability.SYNCED, MESSAGE_BYTES_MAX)


class JournalEntry(NamedTuple):
    """A value with its key, and the transaction that wrote it (0: none)."""

    key: bytes | None
    value: bytes | None
    write_pointer: int


class Journal:
    """The journal of one state machine. Thread-safe."""

    def __init__(
        self, name: TopicName, registry: Registry, partitions: Partitions, publisher: Publisher
    ) -> None:
        self.name = name
        self._registry = registry
        self._partitions = partitions
        self._publisher = publisher
        self._known = False

    def append(
        self,
        values: Sequence[bytes | None],
        durability: Durability,
        keys: Sequence[bytes] | None = None,
        stamp: Stamp = PLAIN,
        inline: Durability = Durability.SYNCED,
    ) -> PendingAppend:
        """Append values together; the calling thread itself writes what needs at most `inline`."""
        if not self._known:
            self._registry.create(self.name, _SETTINGS)
            self._known = True
        blocks = [NewBlock(0, encode(values, keys))]
        return self._publisher.submit(self.name, blocks, durability, inline, stamp, internal=True)

    def finish(self, pending: PendingAppend) -> list[Appended]:
        """The outcome of an append. This thread writes it if no other one has begun to: who holds
        a lock meanwhile, which threads in the background wait for, must not depend on a free
        one."""
        if not pending.done():
            record = self._registry.find(self.name)
            self._partitions.get(self.name, record, 0).writer.write_what_waits(TIMEOUT_S)
        return pending.result(TIMEOUT_S)

    def keep(
        self,
        values: Sequence[Sequence[bytes | None]],
        keys: Sequence[Sequence[bytes]] | None = None,
        before_ms: int | None = None,
    ) -> None:
        """Append values, each sequence of them together, synced; `replay` begins with them from now
        on. What was before may be forgotten, with `before_ms` only what is older than that."""
        first: MessageId | None = None
        for number, some in enumerate(values):
            names = None if keys is None else keys[number]
            (place,) = self.finish(self.append(some, Durability.SYNCED, names))
            first = first or MessageId(place.time_ms, place.sequence)
        if first is not None:
            self.begin_at(first, before_ms)

    def begin_at(self, first: MessageId, before_ms: int | None = None) -> None:
        """Let `replay` begin here from now on: everything that it needs was appended from there on.
        What was before may be forgotten, with `before_ms` only what is older than that."""
        record = self._registry.find(self.name)
        self._registry.set_journal_start(record.uid, str(first))
        before = Position.at(first) if before_ms is None else Position.time(before_ms)
        self._partitions.get(self.name, record, 0).reader.truncate(before, first.time_ms)

    def replay(
        self, judge: Judge | None = None, start: Position | None = None
    ) -> Iterator[JournalEntry]:
        """All values since the last `keep`, or from a position, that are not of a transaction, and
        those that a judge admits."""
        try:
            record = self._registry.find(self.name)
        except TopicNotFound:
            return
        self._known = True
        log = self._partitions.get(self.name, record, 0)
        reader = log.reader
        _end_doubts(log)
        kept = self._registry.journal_start(record.uid)
        position = start or (Position.earliest() if kept is None else Position.parse(kept))
        ended = False
        while not ended:
            read = reader.read(position, FIRST_KEY, READ_BYTES)
            position, ended = read.next, read.ended
            for stored in read.blocks:
                header = header_of(stored)
                pointer = header.write_pointer
                if judge is not None and not _counts(header, judge):
                    continue
                columns = decode(stored.block)
                for key, value in zip(columns.keys(), columns.values(), strict=True):
                    yield JournalEntry(key, value, pointer)


def _end_doubts(log: PartitionLog) -> None:
    """After a write that failed: what of it is stored counts, and nothing more comes of it."""
    if log.state.known and not log.state.loaded:
        with log.state.changing():
            log.state.load()


def _counts(header: BlockHeader, judge: Judge) -> bool:
    """Whether an entry is true by now. One in progress is not, and holds nothing back: whoever
    commits it tells it to those who replayed before."""
    if header.flags & Flags.ROLLED_BACK:
        return False
    if not header.flags & Flags.TRANSACTIONAL:
        return True
    return judge(header.write_pointer, bool(header.flags & Flags.ISSUED)) is Fate.VISIBLE


def end_of(place: Appended) -> int:
    """The offset after a block."""
    return place.base_offset + place.count
