"""Ordered by key: nobody waits behind a message that is gone."""

import threading
from collections.abc import Callable

import pytest

from tests.queues.test_queues import JOBS, World
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
def test_a_key_goes_on_when_its_retry_is_gone_in_the_receive_that_sees_its_next_message(
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


def test_a_key_goes_on_after_a_start_when_a_commit_settled_its_first_while_the_next_was_seen() -> (
    None
):
    world = World(ordered_by="key")
    world.publish(b"x", keys=[b"a"])
    (first,) = world.receive()
    held, go_on = threading.Event(), threading.Event()
    commits = world.engine.transactions.manager.commits
    commit = commits.submit

    def late(*args: object) -> None:
        held.set()
        go_on.wait(5)
        commit(*args)  # type: ignore[arg-type]

    commits.submit = late  # type: ignore[assignment, method-assign]
    request = world.settle(first, out=b"done")
    thread = threading.Thread(target=world.engine.transactions.commit, args=(request,))
    thread.start()
    assert held.wait(5)
    world.publish(b"y", keys=[b"a"])
    assert world.receive() == [] and world.info().blocked == 1
    go_on.set()
    thread.join()
    world.reopen()
    assert world.values() == [b"y"]


def blocked_behind_nobody() -> list[PartitionEdit]:
    """What such queues have in their journals: the first of the key was settled before the next was
    noted as blocked by it."""
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
