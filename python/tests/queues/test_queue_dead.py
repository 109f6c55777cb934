"""Dead letters: each message becomes exactly one, whatever fails and however large it is."""

import pytest

from sim.faulty import FaultyStore
from tests.queues.test_queues import DEAD, JOBS, World
from tms.block import HEADERS_MAX, encode
from tms.engine.engine import Engine
from tms.errors import Invalid, TMSError
from tms.model.keys import Partitioner
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.topic import MESSAGE_BYTES_MAX, TopicSettings


class OneFailingWrite(World):
    """A write of its store fails, once."""

    def open(self) -> None:
        self.faulty = FaultyStore(self.store)
        self.engine = Engine(self.faulty, self.clock)
        self.queues = self.engine.queues


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("count", [10, 40])
def test_one_failing_write_makes_no_dead_letter_twice(count: int, stored: bool) -> None:
    failed = 0
    values = sorted(b"%d" % n for n in range(count))
    for number in range(1, 12):
        world = OneFailingWrite()
        world.publish(*values)
        world.reject(*world.receive())
        world.faulty.fail_write(number, stored=stored)
        for _ in range(5):
            try:
                world.queues.tidy()
            except TMSError:
                failed += 1
                world.engine.maintenance.recover()
        assert world.info().dying == 0
        assert sorted(one.value or b"" for one in world.read(DEAD)) == values
    assert failed > 3


@pytest.mark.parametrize("count", [996, 997, 999, 1_000])
def test_a_message_with_many_headers_becomes_a_dead_letter_and_comes_back(count: int) -> None:
    world = World()
    headers = {f"h{n}": b"%d" % n for n in range(count)}
    world.publish(b"other", b"many", headers=[None, headers])
    world.reject(*world.receive())
    assert world.queues.tidy() == 2
    assert [len(one.headers) for one in world.read(DEAD)] == [4, count + 4]
    world.engine.truncate_topic(DEAD, Position.offset(1))  # the rest of the block is packed again
    assert [len(one.headers) for one in world.read(DEAD)] == [count + 4]
    assert world.queues.redrive(JOBS, "g") == 1
    (back,) = world.receive()
    assert (back.value, back.headers) == (b"many", headers)


def test_the_largest_message_becomes_a_dead_letter_and_comes_back() -> None:
    world = World()
    world.engine.update_topic(JOBS, {"message_bytes_max": MESSAGE_BYTES_MAX})
    value = bytes(MESSAGE_BYTES_MAX - 2)
    world.publish(value, keys=[b"k"], headers=[{"h": b""}])
    world.reject(*world.receive())
    assert world.queues.tidy() == 1 and world.queues.redrive(JOBS, "g") == 1
    (back,) = world.receive()
    assert (back.value, back.key, back.headers) == (value, b"k", {"h": b""})


def test_the_limit_of_the_dead_letters_topic_keeps_no_message_dying() -> None:
    world = World(ordered_by="key")
    world.engine.create_topic(DEAD, TopicSettings(1, message_bytes_max=100))
    world.publish(bytes(300), b"next", keys=[b"k", b"k"])
    world.reject(*world.receive())
    assert world.queues.tidy() == 1 and world.values() == [b"next"]


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_dead_letter_goes_where_the_partitioner_of_its_topic_sends_its_key(
    partitioner: Partitioner,
) -> None:
    world = World()
    world.engine.create_topic(DEAD, TopicSettings(7, partitioner=partitioner))
    keys = [b"key %d" % number for number in range(20)]
    world.publish(*keys, keys=keys)
    world.reject(*world.receive())
    assert world.queues.tidy() == len(keys)
    found = {one.key: one.partition for one in world.read(DEAD)}
    assert found == {key: partitioner.partition_of(key, 7) for key in keys}
    assert world.queues.redrive(JOBS, "g") == len(keys)
    assert sorted(one.key or b"" for one in world.receive()) == sorted(keys)


def test_publishers_have_no_room_for_what_is_added_to_dead_letters() -> None:
    world = World()
    headers = {f"h{n}": b"" for n in range(HEADERS_MAX + 1)}
    with pytest.raises(Invalid, match="at most 1000 headers"):
        world.engine.append(JOBS, [NewBlock(0, encode([b""], None, [headers]))])
