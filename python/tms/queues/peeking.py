"""Reading the messages of a queue without leasing them.

Invariants

* The queue does not change: a shown message may be with a worker, or settled, a moment later. A
  shown token is that of the last delivery, and is too late after the next one.
* Delivered messages come first, by partition and offset, then new ones.
* About `bytes_max` bytes of messages are shown, but at least one message.
"""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import NamedTuple

from tms.block.received import Received, Slice
from tms.model.message import Fetched, PartitionPosition
from tms.model.queue import DELIVERIES_BITS, DELIVERIES_MASK, QueuedMessage, QueuedState, Token
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

EMPTY_PAGES_MAX = 16  # of the log in a row, without a visible message
_STATES: Mapping[int, QueuedState] = {
    LEASED: QueuedState.LEASED,
    BLOCKED: QueuedState.BLOCKED,
    DYING: QueuedState.DYING,
}


class _Status(NamedTuple):
    """A message as the queue knows it: the number of its deliveries, its state, the seconds until
    that ends by itself, and the token of its last delivery."""

    deliveries: int
    state: QueuedState
    left_s: float | None = None
    token: str = ""


_NEW = _Status(0, QueuedState.NEW)


class _Outstanding(NamedTuple):
    """A queue at one moment: delivered messages by partition and offset, the frontiers, and the
    positions from which new messages are read."""

    known: dict[int, dict[int, _Status]]
    frontiers: dict[int, int]
    positions: list[PartitionPosition]


def peek(
    queue: OpenQueue, log: Fetcher, partitions: int, limit: int, bytes_max: int
) -> list[QueuedMessage]:
    """Up to `limit` messages that are not settled. Raises `DataCorrupt`."""
    scanner = Scanner(log, queue.topic)
    looked = _look(queue, scanner, partitions, limit)
    messages: list[QueuedMessage] = []
    for partition, known in looked.known.items():
        offsets = sorted(known)[: limit - len(messages)]
        if not offsets or bytes_max <= 0:
            continue
        for block, within in scanner.find(partition, offsets, bytes_max).pieces:
            for offset in within:
                if bytes_max > 0:
                    messages += _messages(queue, block.slice(offset, 1, 1), known)
                    bytes_max -= block.bytes_of(offset, 1)
    positions, empty = looked.positions, 0
    while positions and empty < EMPTY_PAGES_MAX:
        if len(messages) >= limit or bytes_max <= 0:
            break
        page, before = scanner.read(positions), len(messages)
        for block in page.blocks:
            first = max(block.base, looked.frontiers.get(block.partition, 0))
            if first >= block.stop or len(messages) >= limit or bytes_max <= 0:
                continue
            count, size = block.fitting(first, limit - len(messages), bytes_max)
            messages += _messages(queue, block.slice(first, count, 1), {})
            bytes_max -= size
        empty = empty + 1 if len(messages) == before else 0
        positions = [] if page.fetched.ended else _behind(page.fetched)
    return messages


def _behind(fetched: Fetched) -> list[PartitionPosition]:
    """The positions after a page, of partitions that go on behind it."""
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
            {
                number: dict(_known(states[number], number, queue.state.epoch, limit, now_ms))
                for number in sorted(states)
            },
            {number: state.frontier for number, state in states.items()},
            scanner.positions(states, range(partitions)),
        )


def _known(
    state: QueuePartitionState, partition: int, epoch: int, limit: int, now_ms: int
) -> Iterator[tuple[int, _Status]]:
    for offset in nsmallest(limit, state.out):
        value = state.out[offset]
        left_ms = (value >> TIME_SHIFT) - now_ms
        waiting = QueuedState.READY if left_ms <= 0 else QueuedState.DELAYED
        now = _STATES.get(value >> DELIVERIES_BITS & STATE_MASK, waiting)
        left_s: float | None = None
        token = ""
        if now in (QueuedState.LEASED, QueuedState.DELAYED):
            left_s = max(0, left_ms) / 1_000
        if now in (QueuedState.LEASED, waiting) and (last := state.number(offset)):
            token = str(Token(partition, offset, last, epoch))
        yield offset, _Status(value & DELIVERIES_MASK, now, left_s, token)


def _messages(
    queue: OpenQueue, part: Slice, known: Mapping[int, _Status]
) -> Iterator[QueuedMessage]:
    for message in Received(0, (part,)).messages(str(queue.topic)):
        deliveries, state, left_s, token = known.get(message.offset, _NEW)
        times = message.event_time_ms, left_s
        yield QueuedMessage(*message[:7], deliveries, state, *times, token)
