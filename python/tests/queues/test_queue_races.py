"""A queue that is deleted while another thread uses it stays deleted, and a waiter of a full queue
is woken by whatever makes room."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from tests.queues.test_queues import JOBS, World
from tests.waiting import PATIENCE_S
from tms.errors import Fenced, QueueNotFound
from tms.model.queue import Token
from tms.model.topic import TopicSettings
from tms.queues.queue_shard import QueueShard
from tms.queues.state import QueueState

Change = Callable[[World], object]


def _update(world: World) -> object:
    return world.queues.update(JOBS, "g", {"lease_s": 7})


def _renew(world: World) -> object:
    world.engine.delete_topic(JOBS)
    world.engine.create_topic(JOBS, TopicSettings(1))
    return world.info()


@contextmanager
def deleted_after(name: str, world: World) -> Iterator[None]:
    """Within, the queue is deleted as soon as another thread has found it: `name` is the method of
    a shard that comes after or before."""
    method = getattr(QueueShard, name)

    def deleting(shard: QueueShard, *args: object) -> object:
        with patch.object(QueueShard, name, method):
            if name == "_renew":
                world.queues.delete(JOBS, "g")
                return method(shard, *args)
            handle = method(shard, *args)
            world.queues.delete(JOBS, "g")
            return handle

    with patch.object(QueueShard, name, deleting):
        yield


@pytest.mark.parametrize(
    ("method", "change"), [("open", _update), ("_renew", _renew)], ids=["update", "renew"]
)
def test_a_change_does_not_bring_back_a_queue_that_is_deleted_meanwhile(
    method: str, change: Change
) -> None:
    world = World()
    with deleted_after(method, world), pytest.raises(QueueNotFound):
        change(world)
    world.reopen()
    with pytest.raises(QueueNotFound):
        world.info()


def test_an_acknowledgement_in_a_deleted_queue_settles_nothing_in_a_later_one() -> None:
    world = World()
    world.publish(b"1")
    (message,) = world.receive()
    (queue,) = world.queues.opened()
    world.queues.delete(JOBS, "g")
    world.declare()
    token, durability = Token.parse(message.token), world.queues._of(JOBS, "g").open(JOBS, "g")[4]
    with pytest.raises(QueueNotFound):
        queue.change(QueueState.settle, [token], durability, settles=True)
    world.reopen()
    assert world.values() == [b"1"]


def test_nobody_receives_from_a_deleted_queue() -> None:
    world = World()
    world.publish(b"1")
    handle = world.queues._of(JOBS, "g").open(JOBS, "g")
    world.queues.delete(JOBS, "g")
    with pytest.raises(QueueNotFound):
        handle.receive(1, 1 << 20)


def test_a_handle_of_a_deleted_queue_is_not_current() -> None:
    world = World()
    shard = world.queues._of(JOBS, "g")
    handle = shard.open(JOBS, "g")
    assert shard.is_current(handle)
    world.queues.delete(JOBS, "g")
    assert not shard.is_current(handle)


def test_a_handle_of_a_closed_shard_is_not_current() -> None:
    world = World()
    shard = world.queues._of(JOBS, "g")
    handle = shard.open(JOBS, "g")
    shard.close()
    assert not shard.is_current(handle)


# Waiting for room


def _commit(world: World, *messages: object) -> None:
    world.engine.transactions.commit(world.settle(*messages))  # type: ignore[arg-type]


def _ack(world: World, *messages: object) -> None:
    world.ack(*messages)  # type: ignore[arg-type]


def _raise_the_bound(world: World, *_: object) -> None:
    world.queues.update(JOBS, "g", {"outstanding_max": 3})


@pytest.mark.parametrize("make_room", [_ack, _commit, _raise_the_bound])
def test_a_waiter_of_a_full_queue_is_woken_when_there_is_room(
    make_room: Callable[..., None],
) -> None:
    world = World(outstanding_max=2)
    world.publish(b"1", b"2", b"3")
    one, _ = world.receive()
    assert world.receive() == []
    woken = threading.Event()
    end, _ = world.queues.watch(JOBS, "g", woken.set)
    assert not woken.is_set()
    make_room(world, one)
    assert woken.is_set() and world.values() == [b"3"]
    end(True)


def test_a_waiter_is_woken_when_a_transaction_fails_whose_messages_have_no_lease_any_more() -> None:
    world = World()
    world.publish(b"1", b"2")
    one, two = world.receive()
    world.queues.extend(JOBS, "g", [two.token], 600)
    tx = world.engine.transactions
    begun = tx.begin().transaction_id
    settling = world.queues._of(JOBS, "g").settling
    (queue,) = world.queues.opened()
    with queue.lock:
        queue.state.partitions[0].hold([one.offset], begun)
    world.clock.pass_ms(20_000)
    settling.follow(begun)
    assert world.receive() == []
    woken = threading.Event()
    end, _ = world.queues.watch(JOBS, "g", woken.set)
    assert not woken.is_set()
    tx.abort(begun)
    assert woken.wait(PATIENCE_S) and world.values() == [b"1"]
    with pytest.raises(Fenced):
        _commit(world, one)
    end(True)
