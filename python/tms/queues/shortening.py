"""Shortening the journal: every queue as it stands, then a new beginning.

    queue by queue: its settings, its partitions ─▶ replay begins at the first of them

Invariants

* Cut anywhere, nothing is lost: replay begins where it began before until every queue is written,
  and a snapshot counts only as a whole.
* A snapshot is synced, so what it rests on is synced before: commits cannot be newer than it.
"""

from collections.abc import Callable, Iterable

import msgspec

from tms.clock import Clock
from tms.model.ids import MessageId
from tms.queues.entries import encode
from tms.queues.journal import Cells, QueueJournal
from tms.queues.queue import OpenQueue
from tms.queues.snapshots import chunks_of
from tms.transactions.manager import TransactionManager

TOGETHER_BYTES = 2 << 20


def shorten(
    journal: QueueJournal,
    manager: TransactionManager,
    opened: Callable[[], Iterable[OpenQueue]],
    clock: Clock,
) -> None:
    """Let a start read the journal from here on."""
    first: MessageId | None = None
    doubts = journal.doubts
    for queue in opened():
        with manager.alone(durable=True), queue.lock:
            if not queue.deleted:
                kept = _keep(journal, queue, clock.now_ms())
                first = first or kept
    if first is not None and doubts == journal.doubts:
        journal.begin_at(first)


def _keep(journal: QueueJournal, queue: OpenQueue, when_ms: int) -> MessageId:
    """Write one queue, whose lock the caller holds; where it begins."""
    partitions = queue.state.partitions
    starts = [(number, one.frontier, one.at) for number, one in partitions.items() if one.frontier]
    declared = msgspec.structs.replace(queue.state.declared, starts=starts)
    first = journal.keep([(queue.key(), encode(declared))])
    some: list[Cells] = []
    size = 0
    for number, one in partitions.items():
        for chunk in chunks_of(one, queue.now_ms(), when_ms):
            entry = encode(chunk)
            if some and size + len(entry) > TOGETHER_BYTES:
                journal.keep(some)
                some, size = [], 0
            some.append((queue.key(number), entry))
            size += len(entry)
    if some:
        journal.keep(some)
    return first
