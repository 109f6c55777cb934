"""The journal `system:_queues` of all queues of an engine.

    add ─▶ (apply, in the same hold of the queue's lock) ─▶ wait: the first waiter writes all

A queue applies entries when it adds them, because its next decision rests on them, and answers once
they are stored. This is the one journaled state that is ahead of its journal: a failed write ends
the term, and with it every entry that was added in that term.

Invariants, besides those of `log.journaled` and `log.group_commit`

* Entries are stored in the order in which they were added; entries that were added together are
  stored all or none.
* No entry of a term that has ended is stored: it may rest on an entry that was not, and no queue
  has that state any more.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from msgspec import Struct

from tms.errors import TimedOut, TMSError
from tms.log.group_commit import GroupCommit
from tms.log.groups import Stamp
from tms.log.journaled import Cells, JournalEntry, Replayed, unreadable
from tms.log.pending import PendingAppend
from tms.model.topic import Durability, TopicName
from tms.topics.internal_topic import InternalTopic

WRITE_TIMEOUT_S = 60.0
_RANK = attrgetter("rank")
_IS_DONE = attrgetter("done")


class QueueWrite(Struct, eq=False):
    """Entries to be written together, and the outcome of the write."""

    entries: Sequence[Cells]
    durability: Durability
    term: object
    done: bool = False
    error: TMSError | None = None


class QueueJournal:
    """The journal of all queues of an engine. Thread-safe. `replay` makes them what its entries
    say."""

    def __init__(
        self, topic: InternalTopic, replay: Callable[[Iterator[JournalEntry]], None]
    ) -> None:
        self._topic = topic
        self.journaled = Replayed(topic, replay)
        self.turn = threading.Lock()  # held by the thread that reads or writes it
        self._writes = GroupCommit(self.turn, self._write, lambda lead: lead())

    @property
    def name(self) -> TopicName:
        """The topic of the journal."""
        return self._topic.name

    def is_long(self, entries_max: int, bytes_max: int) -> bool:
        """True if a snapshot is due."""
        topic = self._topic
        much = topic.length > entries_max or topic.bytes > bytes_max
        return much and topic.is_worth_a_snapshot

    def load(self) -> None:
        """Read the journal unless it is known. Raises `StorageUnavailable`."""
        with self.turn:
            self.journaled.load()

    def add(self, entries: Iterable[Cells], durability: Durability) -> QueueWrite:
        """Queue entries for the next write; the caller must call `wait` for this write or a later
        one. Raises `StorageUnavailable` while the journal has to be read."""
        term = self.journaled.term
        if self.journaled.loaded is not term:
            raise unreadable()
        write = QueueWrite(list(entries), durability, term)
        self._writes.join(write)
        return write

    def wait(self, write: QueueWrite) -> None:
        """Wait until a write is stored. Raises the error that it failed with."""
        is_done = partial(_IS_DONE, write)
        if not write.done and not self._writes.write_what_waits(WRITE_TIMEOUT_S, is_done):
            raise TimedOut("The journal of queues is busy. What was asked may still be done.")
        if write.error is not None:
            raise write.error

    def _write(self, group: Sequence[QueueWrite]) -> None:
        term = self.journaled.term
        valid: list[QueueWrite] = []
        entries: list[Cells] = []
        durability = Durability.WRITTEN
        for request in group:
            if request.term is term:
                valid.append(request)
                entries += request.entries
                durability = max(durability, request.durability, key=_RANK)
            else:
                request.error = unreadable()
        try:
            if entries:
                self._topic.write(entries, durability)
        except BaseException as error:
            self.journaled.invalidate()  # it may have been stored all the same
            for request in valid:
                request.error = error if isinstance(error, TMSError) else unreadable()
            if not isinstance(error, TMSError):
                raise
        finally:
            for request in group:
                request.done = True

    def store(
        self, entries: Sequence[Cells], durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        """Write entries of a transaction; the calling thread writes what needs at most `inline`."""
        return self._topic.append(entries, durability, stamp, inline)

    def snapshot(self, entries: Iterable[Sequence[Cells]]) -> None:
        """Write entries, synced, each sequence all or none; a start reads from the first of them
        on."""
        self._topic.snapshot(entries)
