"""A partition of an internal topic: the journal of one state machine (`log.journaled`).

Invariants

* Its entries do not expire, and those that a snapshot makes unnecessary are dropped.
* `replay` gives the entries in the order in which they were appended. An entry is there if its
  append was acknowledged, and may be there if it was not. A missing entry never appears later:
  nothing is replayed while a failed write is still under way.
* Among several processes no entry is appended behind entries that the last replay did not have,
  unless this object appended those since: once another process has owned the journal, or another
  object has replayed it, every append is refused until the journal is replayed. It is never
  appended to through another process, and never left without an owner that the next one can fence.
* A journal without an append has no topic.
"""

from collections.abc import Iterable, Iterator, Sequence

from tms.block import decode, encode, read_header, unpack_lone
from tms.errors import StorageUnavailable, TopicNotFound
from tms.log.groups import PLAIN, Stamp, Ticket
from tms.log.journaled import Cells, JournalEntry
from tms.log.partition_log import PartitionLog
from tms.log.pending import PendingAppend
from tms.log.records import FIRST_KEY
from tms.log.recovery import header_of
from tms.model.ids import MessageId
from tms.model.message import Appended, Buffer
from tms.model.position import Position
from tms.model.topic import MESSAGE_BYTES_MAX, Durability, TopicName, TopicSettings
from tms.topics.partitions import Partitions
from tms.topics.registry import Registry

READ_BYTES = 8 << 20
TIMEOUT_S = 30.0
SNAPSHOT_FACTOR = 4  # bytes of the last snapshot per byte of entries since, for another one


class InternalTopic:
    """The journal of one state machine: a partition of a topic with so many `partitions`.
    Thread-safe. Entries of transactions are replayed whatever the outcome of these."""

    def __init__(
        self,
        name: TopicName,
        registry: Registry,
        logs: Partitions,
        partition: int = 0,
        partitions: int = 1,
    ) -> None:
        self.name = name
        self.partition = partition
        self.length = 0  # number of entries that the next replay reads
        self.bytes = 0  # of those entries
        self._snapshot_bytes = 0  # of the last snapshot
        self._registry = registry
        self._logs = logs
        self._partitions = partitions
        self._exists = False
        self._term: object = None  # of the partition, since the last replay
        self._failed: list[PendingAppend] = []  # writes without an answer in time

    def append(
        self,
        entries: Sequence[Cells],
        durability: Durability,
        stamp: Stamp = PLAIN,
        inline: Durability = Durability.SYNCED,
    ) -> PendingAppend:
        """Append entries together; the calling thread itself writes them if they need at most
        `inline`. Raises `NotOwner`."""
        ticket = self._ticket(entries, durability, stamp)
        self._log().writer.submit(ticket, inline)
        return ticket.pending

    def _ticket(
        self, entries: Sequence[Cells], durability: Durability, stamp: Stamp = PLAIN
    ) -> Ticket:
        if not self._exists:
            self._create()
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for key, value in entries:
            keys.append(key)
            values.append(value)
            self.length += 1
            self.bytes += len(key or b"") + len(value or b"")
        block = encode(values, keys)
        pending, entry = PendingAppend(1), (0, block, read_header(block))
        return Ticket(pending, durability, stamp, [entry], bytes=len(block), term=self._term)

    def write(self, entries: Sequence[Cells], durability: Durability) -> Appended:
        """Append entries together, and wait until they are stored. This thread writes them if no
        other one has begun to: a caller with a lock for which background threads wait must not
        depend on a free thread."""
        ticket = self._ticket(entries, durability)
        pending = ticket.pending
        writer = self._log().writer
        if writer.submit(ticket, Durability.SYNCED):
            return pending.result()[0]
        try:
            writer.write_what_waits(TIMEOUT_S)
            return pending.result(TIMEOUT_S)[0]
        finally:
            if not pending.done():
                self._failed.append(pending)

    def renew(self, entries: Sequence[Cells]) -> None:
        """Append entries that do not depend on earlier ones, synced; a replay must follow. It also
        settles the outcome of an earlier write."""
        self._term = None
        self.write(entries, Durability.SYNCED)

    def snapshot(self, entries: Iterable[Sequence[Cells]], before_ms: int | None = None) -> None:
        """Append entries, each sequence of them together, synced; from now on `replay` begins with
        them. Earlier entries may be dropped; with `before_ms`, only those older than it."""
        places: list[Appended] = []
        bytes_before = self.bytes
        for batch in entries:
            places.append(self.write(batch, Durability.SYNCED))
        if not places:
            return
        self._snapshot_bytes = self.bytes - bytes_before
        first, log = MessageId(places[0].time_ms, places[0].sequence), self._log()
        self._registry.set_journal_start(log.uid, self.partition, str(first))
        self.length = self.bytes = 0
        before = Position.at(first) if before_ms is None else Position.time(before_ms)
        log.reader.truncate(before, first.time_ms)

    def replay(self) -> Iterator[JournalEntry]:
        """All entries since the last snapshot. Raises `StorageUnavailable` while a failed write is
        still under way, and `NotOwner`."""
        self.length = self.bytes = 0
        self._settle()
        if self._logs.are_of_several:
            if not self._exists:
                self._create()
            self._term = object()
            self._log().begin_term(self._term)
        for entry in self._entries(None):
            self.length += 1
            self.bytes += len(entry.key or b"") + len(entry.value or b"")
            yield entry

    def since(self, start: Position) -> Iterator[JournalEntry]:
        """As `replay`, but from a position on."""
        self._settle()
        return self._entries(start)

    @property
    def is_worth_a_snapshot(self) -> bool:
        """True if the entries since the last snapshot have more than a quarter of its bytes: so
        snapshots cost at most a few times as much as entries, however large the state is."""
        return self.bytes * SNAPSHOT_FACTOR > self._snapshot_bytes

    def _create(self) -> None:
        settings = TopicSettings(self._partitions, None, None, Durability.SYNCED, MESSAGE_BYTES_MAX)
        self._registry.create(self.name, settings)
        self._exists = True

    def _settle(self) -> None:
        """Make sure that the stored entries stay as they are, unless more are appended."""
        for pending in list(self._failed):
            if not pending.done():
                raise StorageUnavailable(
                    f"A write of {self.name} that failed is still under way. Try again."
                )
            self._failed.remove(pending)
        try:
            log = self._log()
        except TopicNotFound:
            return
        self._exists = True
        log.settle()

    def _log(self) -> PartitionLog:
        record = self._registry.known.get(self.name) or self._registry.find(self.name)
        return self._logs.get(self.name, record, self.partition)

    def _entries(self, start: Position | None) -> Iterator[JournalEntry]:
        if not self._exists:
            return
        log = self._log()
        reader = log.reader
        first = self._registry.journal_start(log.uid, self.partition)
        position = start or (Position.earliest() if first is None else Position.parse(first))
        ended = False
        while not ended:
            read = reader.read(position, FIRST_KEY, READ_BYTES)
            position, ended = read.next, read.ended
            for stored in read.blocks:
                pointer = header_of(stored).write_pointer
                for key, value in _cells(stored.block):
                    yield JournalEntry(key, value, pointer)


def _cells(block: Buffer) -> Iterable[Cells]:
    """Keys and values of a block; most blocks have one entry."""
    lone = unpack_lone(block)
    if lone is not None:
        return (lone,)
    columns = decode(block)
    return zip(columns.keys(), columns.values(), strict=True)
