"""The liveness of a queue: after quiet time every message is delivered, settled or dead, none is
blocked, and every waiter is woken."""

import threading
from collections.abc import Callable

from tests.clocks import ManualClock
from tms.block.received import Delivered
from tms.model.queue import QueueInfo
from tms.model.topic import TopicName
from tms.queues import Queues
from tms.queues.partition import BLOCKED, QueuePartitionState
from tms.queues.queue import OpenQueue
from tms.queues.state import QueueState

QUIET_MS = 13 * 3_600_000  # every lease and delay is over then
WAKE_S = 20.0  # of the machine's clock


def drain(
    queues: Queues, clock: ManualClock, group: str, topic: TopicName, rounds_max: int
) -> list[Delivered]:
    """Acknowledge all messages that a queue hands out until none is left. Fails if the queue stops
    before, or takes more rounds than there can be messages."""
    found: list[Delivered] = []
    for _ in range(rounds_max):
        queues.tidy()
        messages = queues.receive(topic, group, 10_000).messages(str(topic))
        if messages:
            result = queues.ack(topic, group, [one.token for one in messages])
            assert not result.fenced, "what nobody else has was acknowledged too late"
            found += messages
            continue
        info = queues.describe(topic, group)
        if is_over(info):
            require_nothing_held(queues, group, topic)
            return found
        clock.pass_ms(QUIET_MS)
    raise AssertionError(
        f"it is not over after {rounds_max} rounds: {queues.describe(topic, group)}"
    )


def is_over(info: QueueInfo) -> bool:
    """True if every message is settled or dead."""
    left = info.backlog + info.leased + info.ready + info.delayed + info.blocked + info.dying
    return left == 0 and all(one.cursor == one.frontier for one in info.partitions)


def require_nothing_held(queues: Queues, group: str, topic: TopicName) -> None:
    """The queue keeps no state of settled messages."""
    (queue,) = (one for one in queues.opened() if (one.group, one.topic) == (group, topic))
    for state in queue.state.partitions.values():
        assert not (state.out or state.held or state.dying or state.causes)
    assert not queue.waiters.waiting, "somebody waits and is not there any more"


def require_totals(state: QueueState) -> None:
    """Check that the counters of a queue are the sums over its partitions."""
    partitions = state.partitions.values()
    assert state.totals.outstanding == sum(len(partition.out) for partition in partitions)
    assert state.totals.held == sum(len(partition.held) for partition in partitions)


def require_unblocked(state: QueuePartitionState) -> None:
    """A message waits for another one of its key only while that one is not settled."""
    if state.order is None:
        assert not state.counts[BLOCKED]
        return
    first: dict[int, int] = {}
    for offset in sorted(state.out):
        head = first.setdefault(state.order.hash_of(offset), offset)
        blocked = state.out[offset] >> 20 & 7 == BLOCKED
        assert not (blocked and head == offset), f"{offset} is blocked by nobody"


def require_woken(
    queue: OpenQueue, receive: Callable[[], object], publish: Callable[[], None]
) -> None:
    """A waiting receive gets the next message."""
    found: list[object] = []
    waiter = threading.Thread(target=lambda: found.append(receive()))
    waiter.start()
    while waiter.is_alive() and not queue.waiters.waiting:
        waiter.join(0.001)
    publish()
    waiter.join(WAKE_S)
    assert found and found[0], "a thread waits on nobody"
