"""Looking at the messages of a queue without leasing them.

Invariants

* Nothing of the queue changes, and no token is made: what is shown may be with a worker, or
  settled, a moment later.
* What was handed out before comes first, by partition and offset, then what never was.
* No more than about `bytes_max` bytes of messages are shown, but at least one message.
"""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import NamedTuple

from tms.block.received import Received, Slice
from tms.model.message import Fetched, PartitionPosition
from tms.model.queue import DELIVERIES_BITS, DELIVERIES_MASK, QueuedMessage, QueuedState
from tms.queues.partition import (
    BLOCKED,
    DYING,
    LEASED,
    STATE_MASK,
    TIME_SHIFT,
    QueuePartitionState,
)
from tms.queues.queue import OpenQueue
from tms.queues.reading import Scanner
from tms.topics.fetching import Fetcher

EMPTY_PAGES_MAX = 16  # of the log, one after another, that have nothing to be seen
_STATES: Mapping[int, QueuedState] = {
    LEASED: QueuedState.LEASED,
    BLOCKED: QueuedState.BLOCKED,
    DYING: QueuedState.DYING,
}


class _Standing(NamedTuple):
    """What the queue knows of a message: how often it was delivered, and how it stands."""

    deliveries: int
    state: QueuedState


class _Outstanding(NamedTuple):
    """A queue as it is at one moment: messages that were handed out, by partition and offset, and
    where those begin that were not."""

    known: dict[int, dict[int, _Standing]]
    frontiers: dict[int, int]
    positions: list[PartitionPosition]


def peek(
    queue: OpenQueue, log: Fetcher, partitions: int, limit: int, bytes_max: int
) -> list[QueuedMessage]:
    """Up to `limit` messages that are not settled. Raises `DataCorrupt`."""
    scanner = Scanner(log, queue.topic)
    looked = _look(queue, scanner, partitions, limit)
    found: list[QueuedMessage] = []
    for partition, known in looked.known.items():
        offsets = sorted(known)[: limit - len(found)]
        if not offsets or bytes_max <= 0:
            continue
        for block, within in scanner.find(partition, offsets, bytes_max).pieces:
            for offset in within:
                if bytes_max > 0:
                    found += _messages(queue, block.slice(offset, 1, 1), known)
                    bytes_max -= block.bytes_of(offset, 1)
    positions, empty = looked.positions, 0
    while positions and empty < EMPTY_PAGES_MAX:
        if len(found) >= limit or bytes_max <= 0:
            break
        page, before = scanner.read(positions), len(found)
        for block in page.blocks:
            first = max(block.base, looked.frontiers.get(block.partition, 0))
            if first >= block.stop or len(found) >= limit or bytes_max <= 0:
                continue
            count = block.fitting(first, limit - len(found), bytes_max)
            found += _messages(queue, block.slice(first, count, 1), {})
            bytes_max -= block.bytes_of(first, count)
        empty = empty + 1 if len(found) == before else 0
        positions = [] if page.fetched.ended else _behind(page.fetched)
    return found


def _behind(fetched: Fetched) -> list[PartitionPosition]:
    """Where to read on."""
    return [
        PartitionPosition(partition, position)
        for partition, position in fetched.next.items()
        if fetched.reached[partition] < fetched.ends[partition]
    ]


def _look(queue: OpenQueue, scanner: Scanner, partitions: int, limit: int) -> _Outstanding:
    queue.expire()
    with queue.lock:
        states, now_ms = queue.state.partitions, queue.now_ms()
        return _Outstanding(
            {number: dict(_known(states[number], limit, now_ms)) for number in sorted(states)},
            {number: state.frontier for number, state in states.items()},
            scanner.positions(states, range(partitions)),
        )


def _known(state: QueuePartitionState, limit: int, now_ms: int) -> Iterator[tuple[int, _Standing]]:
    for offset in nsmallest(limit, state.out):
        value = state.out[offset]
        waiting = QueuedState.READY if value >> TIME_SHIFT <= now_ms else QueuedState.DELAYED
        number = value >> DELIVERIES_BITS & STATE_MASK
        yield offset, _Standing(value & DELIVERIES_MASK, _STATES.get(number, waiting))


def _messages(
    queue: OpenQueue, part: Slice, known: Mapping[int, _Standing]
) -> Iterator[QueuedMessage]:
    for message in Received(0, (part,)).messages(str(queue.topic)):
        deliveries, state = known.get(message.offset, _Standing(0, QueuedState.NEW))
        yield QueuedMessage(*message[:7], deliveries=deliveries, state=state)
