"""Shortening the journal: every queue as it stands, then a new beginning.

    queue by queue: its settings, its partitions ─▶ replay begins at the first of them

Invariants

* Cut anywhere, nothing is lost: replay begins where it began before until every queue is written,
  and a snapshot of a partition counts only as a whole.
* A snapshot is synced, so what it rests on is synced before: commits cannot be newer than it.
* No more than one queue waits at a time, so the state is not taken as a whole, as `Journaled` does.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tms.clock import Clock
from tms.journal.journaled import Cells
from tms.model.ids import MessageId
from tms.queues.entries import encode
from tms.queues.journal import QueueJournal
from tms.queues.queue import OpenQueue
from tms.queues.snapshots import chunks_of
from tms.transactions.manager import TransactionManager


def shorten(
    journal: QueueJournal,
    manager: TransactionManager,
    opened: Callable[[], Iterable[OpenQueue]],
    clock: Clock,
) -> None:
    """Let a start read the journal from here on."""
    first: MessageId | None = None
    term = journal.term
    for queue in opened():
        with manager.alone(durable=True), queue.lock:
            if not queue.deleted:
                place = journal.snapshot(_snapshot(queue, clock.now_ms()))
                first = first or place
    if first is not None and term is journal.term:
        journal.begin_at(first)


def _snapshot(queue: OpenQueue, when_ms: int) -> Iterator[Cells]:
    """One queue, whose lock the caller holds."""
    partitions = queue.state.partitions
    starts = [
        (number, partition.frontier, partition.at)
        for number, partition in partitions.items()
        if partition.frontier
    ]
    yield queue.key(), encode(msgspec.structs.replace(queue.state.declared, starts=starts))
    for number, partition in partitions.items():
        for chunk in chunks_of(partition, queue.now_ms(), when_ms):
            yield queue.key(number), encode(chunk)
