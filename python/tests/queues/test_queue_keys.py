"""Order by key: no message waits for one that is gone."""

from collections.abc import Callable

import pytest

from tests.queues.test_queues import JOBS, World, under_way
from tms.block.received import Delivered
from tms.model.position import Position
from tms.queues.entries import Advanced, PartitionEdit, PartitionSnapshot, Settled
from tms.queues.key_order import key_hash, pack
from tms.queues.partition import BLOCKED, TIME_SHIFT, WAITING, QueuePartitionState

KEY = key_hash(b"a")


def erase(world: World, message: Delivered) -> None:
    assert world.engine.erase(JOBS, id=message.id) == 1


def truncate(world: World, message: Delivered) -> None:
    world.engine.truncate_topic(JOBS, Position.offset(message.offset + 1))


def expire(world: World, message: Delivered) -> None:
    world.engine.update_topic(JOBS, {"retention": "1m"})
    world.clock.pass_ms(61_000)


@pytest.mark.parametrize("go", [erase, truncate, expire])
def test_an_erased_retry_unblocks_its_key_in_the_same_receive(
    go: Callable[[World, Delivered], None],
) -> None:
    world = World(ordered_by="key")
    world.publish(b"a1", keys=[b"a"])
    (first,) = world.receive()
    world.nack(first, delay_s=0)
    go(world, first)
    world.publish(b"a2", keys=[b"a"])
    assert world.values() + world.values() == [b"a2"]
    assert world.info().blocked == 0


def test_a_commit_that_settles_a_key_unblocks_it_over_a_restart() -> None:
    world = World(ordered_by="key")
    world.publish(b"x", keys=[b"a"])
    (first,) = world.receive()
    with under_way(world, world.settle(first, out=b"done")):
        world.publish(b"y", keys=[b"a"])
        assert world.receive() == [] and world.info().blocked == 1
    world.reopen()
    assert world.values() == [b"y"]


def blocked_behind_nobody() -> list[PartitionEdit]:
    """A journal in which the first message of a key was settled before the next was noted as
    blocked by it."""
    return [
        Advanced(0, 1, 0, [0, 1], 1_000, 0, hashes=pack([KEY])),
        Settled([0, 1]),
        Advanced(1, 3, 2, [], 1_000, 0, [1, 2], pack([KEY, KEY])),
    ]


def test_a_journal_in_which_a_key_is_blocked_by_nobody_is_read_as_free() -> None:
    state = QueuePartitionState(ordered=True)
    for edit in blocked_behind_nobody():
        state.apply(edit, 1_000)
    assert state.take_ready(1_000, 9) == [1]
    assert state.counts == [0, 1, 1, 0]
    state.apply(Settled([1, 1]), 1_000)
    assert state.take_ready(1_000, 9) == [2]


def test_a_snapshot_in_which_a_key_is_blocked_by_nobody_is_read_as_free() -> None:
    state = QueuePartitionState(ordered=True)
    hashes = pack([KEY, KEY])
    state.apply(PartitionSnapshot(0, 1, 3, 2, 0, [1, 2], [BLOCKED << 20], hashes), 1_000)
    assert state.take_ready(1_000, 9) == [1]
    assert state.counts == [0, 1, 1, 0]


def test_what_is_blocked_in_a_snapshot_behind_another_of_its_key_stays_blocked() -> None:
    state = QueuePartitionState(ordered=True)
    values = [1 << TIME_SHIFT | WAITING << 20 | 1, BLOCKED << 20]
    state.apply(PartitionSnapshot(0, 1, 3, 2, 0, [1, 1, 2, 1], values, pack([KEY, KEY])), 1_000)
    assert state.counts == [0, 1, 1, 0]
