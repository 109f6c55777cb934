"""Writing the journal `system:_queues`: what comes together is written together.

    add ─▶ the open batch ─▶ wait: whoever comes first writes all of it ─▶ everybody has an answer

Invariants

* Entries are stored in the order in which they were added; a batch is stored whole or not at all.
* After a failed write nothing is added until the journal was read again: what was decided upon it
  would rest on something that may not be there.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence

from tms.errors import StorageUnavailable, TMSError
from tms.journal.journaled import JournalEntry
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.ids import MessageId
from tms.model.topic import Durability, TopicName
from tms.topics.internal_topic import InternalTopic

Cells = tuple[bytes, bytes | None]  # key and value of an entry


class EntryBatch:
    """Entries that are written together."""

    __slots__ = ("done", "durability", "error", "keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.durability = Durability.WRITTEN
        self.done = False
        self.error: TMSError | None = None


class QueueJournal:
    """The journal of all queues of an engine. Thread-safe."""

    def __init__(self, journal: InternalTopic) -> None:
        self._journal = journal
        self._lock = threading.Lock()  # guards the open batch
        self._writing = threading.Lock()
        self._open = EntryBatch()
        self._broken = True  # it was not read yet
        self._doubts = 0
        self.length = 0  # in entries, since its last beginning
        self.bytes = 0  # of these

    @property
    def name(self) -> TopicName:
        """Its topic."""
        return self._journal.name

    @property
    def broken(self) -> bool:
        """Whether it has to be read, for the first time or again."""
        return self._broken

    def distrust(self) -> None:
        """Let it be read again."""
        with self._lock:
            self._broken = True
            self._doubts += 1

    def add(self, entries: Iterable[Cells], durability: Durability) -> EntryBatch:
        """Let entries be written next; `wait` must follow. Raises `StorageUnavailable` while it is
        broken."""
        with self._lock:
            if self._broken:
                raise _unreadable()
            batch = self._open
            for key, value in entries:
                batch.keys.append(key)
                batch.values.append(value)
            if durability.rank > batch.durability.rank:
                batch.durability = durability
            return batch

    def wait(self, batch: EntryBatch) -> None:
        """Return when the batch is stored. Raises what kept it from being so."""
        if not batch.done:
            with self._writing:
                if not batch.done:
                    self._write()
        if batch.error is not None:
            raise batch.error

    def _write(self) -> None:
        with self._lock:
            batch, self._open = self._open, EntryBatch()
        try:
            if self._broken:
                raise _unreadable()
            if batch.values:
                self._grow(batch.keys, batch.values)
                entries = list(zip(batch.keys, batch.values, strict=True))
                self._journal.write(entries, batch.durability)
        except BaseException as error:
            self.distrust()
            known = isinstance(error, TMSError)
            batch.error = error if known else _unreadable()  # type: ignore[assignment]
            if not known:
                raise
        finally:
            batch.done = True

    def store(
        self, entries: Sequence[Cells], durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        """Write entries of a transaction; the calling thread writes what needs at most `inline`."""
        names, values = [key for key, _ in entries], [value for _, value in entries]
        self._grow(names, values)
        return self._journal.append(entries, durability, stamp, inline)

    def _grow(self, names: Iterable[bytes], values: Sequence[bytes | None]) -> None:
        self.length += len(values)
        self.bytes += sum(map(len, names)) + sum(len(value or b"") for value in values)

    def keep(self, entries: Sequence[Cells]) -> MessageId:
        """Write entries of a snapshot, synced; the id of the first."""
        place = self._journal.write(entries, Durability.SYNCED)
        return MessageId(place.time_ms, place.sequence)

    def begin_at(self, first: MessageId) -> None:
        """Everything that is needed stands from there on; what was written since is little."""
        self._journal.begin_at(first)
        self.length = self.bytes = 0

    @property
    def doubts(self) -> int:
        """How often it was distrusted."""
        return self._doubts

    def replay(self) -> Iterator[JournalEntry]:
        """All entries, also those of transactions; `mend` follows once they are applied. Raises
        `StorageUnavailable` while a write that failed is still under way."""
        with self._writing:
            self.length = self.bytes = 0
            for entry in self._journal.replay():
                self._grow((entry.key or b"",), (entry.value,))
                yield entry

    def mend(self, doubts: int) -> None:
        """Its entries are known again, unless it was distrusted more often since it was read. What
        was added before it was found broken never counts."""
        with self._lock:
            dropped, self._open = self._open, EntryBatch()
            dropped.error, dropped.done = _unreadable(), True
            self._broken = self._doubts != doubts


def _unreadable() -> StorageUnavailable:
    return StorageUnavailable(
        "A write of the journal of queues failed, and it has to be read again. Try again."
    )
