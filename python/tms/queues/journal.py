"""The journal `system:_queues` of all queues of an engine.

    add ─▶ (apply, in the same hold of the queue's lock) ─▶ wait: whoever comes first writes all

What a queue decides rests on what it decided just before, so it applies what it has added, and
answers once that is stored. This is the one journaled state that is ahead of its journal: a write
that fails ends the term, and with it everything that was added in it.

Invariants, besides those of `journal.journaled` and `journal.group_commit`

* Entries are stored in the order in which they were added; what was added together is stored whole
  or not at all.
* Nothing is stored that was added in a term that has ended: it rests on something that may not be
  there, and no queue stands like that any more.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from tms.errors import TimedOut, TMSError
from tms.journal.group_commit import GroupCommit
from tms.journal.journaled import Cells, Journaled, JournalEntry, unreadable
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.topic import Durability, TopicName, strongest
from tms.topics.internal_topic import InternalTopic

WRITE_TIMEOUT_S = 60.0


class QueueWrite(Struct, eq=False):
    """Entries that are to be written."""

    entries: Sequence[Cells]
    durability: Durability
    term: object
    done: bool = False
    error: TMSError | None = None


class _QueuesMachine:
    """All queues, as their journal gives them. A replay sets their state; entries that are added
    later were applied by their caller."""

    def __init__(self, replay: Callable[[Iterator[JournalEntry]], None]) -> None:
        self.replay = replay

    def apply(self, state: None, event: Cells) -> None:
        pass

    def encode(self, events: Sequence[Cells]) -> list[Sequence[Cells]]:
        return [events]


class QueueJournal:
    """The journal of all queues of an engine. Thread-safe. `replay` makes them what its entries
    say."""

    def __init__(
        self, topic: InternalTopic, replay: Callable[[Iterator[JournalEntry]], None]
    ) -> None:
        self._topic = topic
        self._journaled = Journaled(topic, _QueuesMachine(replay))
        self._turn = threading.Lock()
        self._writes = GroupCommit(self._turn, self._write, lambda lead: lead())

    @property
    def name(self) -> TopicName:
        """Its topic."""
        return self._topic.name

    @property
    def length(self) -> int:
        """How many entries a start reads."""
        return self._topic.length

    def is_long(self, entries_max: int, bytes_max: int) -> bool:
        """Whether it should begin anew."""
        topic = self._topic
        much = topic.length > entries_max or topic.bytes > bytes_max
        return much and topic.is_worth_a_snapshot

    @property
    def known(self) -> bool:
        """Whether the queues are what it says; else `load` reads."""
        return self._journaled.known

    @property
    def is_at_rest(self) -> bool:
        """Whether it is known, and nobody writes it now."""
        return self._journaled.known and not self._turn.locked()

    @property
    def term(self) -> object:
        """What lasts until it is invalidated."""
        return self._journaled.term

    def invalidate(self) -> None:
        """Let it be read again."""
        self._journaled.invalidate()

    def load(self) -> None:
        """Read it, unless the queues are known. Raises `StorageUnavailable`."""
        with self._turn:
            self._journaled.load()

    def add(self, entries: Iterable[Cells], durability: Durability) -> QueueWrite:
        """Let entries be written next; `wait` must follow, for these or for later ones. Raises
        `StorageUnavailable` while it has to be read."""
        write = QueueWrite(list(entries), durability, self._journaled.term)
        self._journaled.require_known()
        self._writes.join(write)
        return write

    def wait(self, write: QueueWrite) -> None:
        """Return when it is stored. Raises what kept it from being so."""
        if not write.done and not self._writes.write_what_waits(
            WRITE_TIMEOUT_S, lambda: write.done
        ):
            raise TimedOut("The journal of queues is busy. What was asked may still be done.")
        if write.error is not None:
            raise write.error

    def _write(self, group: Sequence[QueueWrite]) -> None:
        term = self._journaled.term
        valid = [request for request in group if request.term is term]
        for request in group:
            request.error = None if request.term is term else unreadable()
        try:
            entries = [entry for request in valid for entry in request.entries]
            if entries:
                levels = (request.durability for request in valid)
                self._journaled.write(entries, strongest(*levels))
        except BaseException as error:
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
        """Write entries, synced, each sequence whole; a start reads from the first of them on."""
        self._topic.snapshot(entries)
