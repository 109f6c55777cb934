"""Dead letters: each message becomes exactly one, whatever fails and however large it is."""

from collections import Counter
from random import Random

import pytest

from sim.faulty import FaultyStore
from tests.queues.test_queues import DEAD, JOBS, World
from tests.run_seed import seed_for
from tms.block import HEADERS_MAX, encode
from tms.engine.engine import Engine
from tms.errors import Conflict, Invalid, TMSError
from tms.model.dead_letters import LetterId, settled_in, settled_text
from tms.model.keys import Partitioner
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import QueueSettings, redrive_group
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


# One by one


def letters_of(world: World) -> dict[bytes, LetterId]:
    """The names of all dead letters, by value."""
    return {one.value or b"": LetterId(one.partition, one.id) for one in world.read(DEAD)}


@pytest.mark.parametrize("number", range(3))
def test_any_order_settles_each_letter_once(number: int) -> None:
    """Random calls, crashes in between, against a plain set of open letters."""
    random = Random(seed_for(f"dead letters {number}"))
    world = World(partitions=2)
    world.engine.create_topic(DEAD, TopicSettings(3))
    made, moved, left = 0, list[bytes](), set[bytes]()
    for _ in range(60):
        match random.randrange(5):
            case 0:
                values = [b"%d" % (made + n) for n in range(random.randint(1, 9))]
                made += len(values)
                for value in values:
                    world.publish(value, keys=[value], partition=random.randrange(2))
                for message in world.receive():
                    if message.value in values:
                        world.reject(message)
                    else:
                        world.ack(message)
                world.queues.tidy()
                left |= set(values)
            case 1:
                count = random.randint(1, 4)
                settled = world.queues.redrive(JOBS, "g", count)
                assert settled == min(count, len(left))
                gone = left - open_letters(world)
                assert len(gone) == settled
                moved += gone
                left -= gone
            case 2 | 3 as kind:
                known = letters_of(world)
                chosen = random.sample(sorted(known), min(len(known), random.randint(0, 6)))
                names = [known[one] for one in chosen]
                call = world.queues.redrive if kind == 2 else world.queues.discard
                if not names:
                    continue
                assert call(JOBS, "g", letters=names) == len(left & set(chosen))
                moved += left & set(chosen) if kind == 2 else ()
                left -= set(chosen)
            case 4:
                world.reopen()
        assert world.info().dead == len(left)
        assert open_letters(world) == left
    stored = Counter(one.value for one in world.read(JOBS))
    assert made > 20 and moved
    assert stored == Counter(b"%d" % n for n in range(made)) + Counter(moved)


def open_letters(world: World) -> set[bytes]:
    """The dead letters that the record says are open."""
    positions = world.engine.groups.committed_in(DEAD, redrive_group("g", JOBS))
    found = set()
    for one in world.read(DEAD):
        at = positions.get(one.partition)
        if at is None:
            found.add(one.value or b"")
            continue
        is_behind = at.position.id is not None and one.id[:2] <= at.position.id[:2]
        if not is_behind and one.offset not in settled_in(at.metadata):
            found.add(one.value or b"")
    return found


@pytest.mark.parametrize("first", [False, True])
def test_of_two_who_settle_at_the_same_time_one_fails(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.publish(b"1", b"2", b"3", b"4")
    world.reject(*world.receive())
    world.queues.tidy()
    known = letters_of(world)
    assert world.queues.discard(JOBS, "g", letters=[known[b"2"]]) == 1
    move = world.queues._dead._move
    others = [known[b"4"]]  # behind an open letter: the position stays, the metadata change

    def overtaken(request: object) -> None:
        if others:
            assert world.queues.discard(JOBS, "g", letters=[others.pop()]) == 1
        move(request)  # type: ignore[arg-type]

    monkeypatch.setattr(world.queues._dead, "_move", overtaken)
    with pytest.raises(Conflict):
        world.queues.redrive(JOBS, "g", letters=() if first else [known[b"3"]])
    assert world.info().dead == 2 and world.values() == []
    assert world.queues.redrive(JOBS, "g") == 2
    assert world.values() == [b"1", b"3"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_failing_write_moves_a_letter_back_once_or_not(stored: bool) -> None:
    outcomes = set()
    for number in range(1, 15):
        world = OneFailingWrite()
        world.publish(b"1", b"2", b"3")
        world.reject(*world.receive())
        world.queues.tidy()
        letter = letters_of(world)[b"2"]
        world.faulty.fail_write(number, stored=stored)
        try:
            done = world.queues.redrive(JOBS, "g", letters=[letter])
        except TMSError:
            done = 0
            world.engine.maintenance.recover()
        again = world.queues.redrive(JOBS, "g", letters=[letter])
        outcomes.add((done, again))
        if (done, again) == (1, 0):  # it took fewer writes
            break
        assert world.info().dead == 2
        assert [one.value for one in world.read(JOBS)].count(b"2") == 2  # the first, and one more
    assert (1, 0) in outcomes and len(outcomes) > 1


def test_the_position_goes_on_as_letters_are_settled_one_by_one() -> None:
    world = World()
    world.publish(*(b"%d" % n for n in range(6)))
    world.reject(*world.receive())
    world.queues.tidy()
    known = letters_of(world)
    records = []
    for value in (b"1", b"0", b"3", b"2", b"5", b"4"):
        assert world.queues.discard(JOBS, "g", letters=[known[value]]) == 1
        (at,) = world.engine.groups.committed_in(DEAD, redrive_group("g", JOBS)).values()
        records.append((str(at.position).partition(":")[0], at.metadata))
    assert records == [
        ("earliest", "settled:1"),
        ("after", "settled:1"),
        ("after", "settled:1,3"),
        ("after", "settled:3"),
        ("after", "settled:3,5"),
        ("after", "settled:5"),
    ]
    assert world.info().dead == 0 == world.queues.redrive(JOBS, "g")


def test_letters_of_another_queue_in_the_same_topic_are_left_alone() -> None:
    world = World(dead_letter="out")
    world.queues.declare(JOBS, "h", QueueSettings(dead_letter="out"))
    world.publish(b"1")
    world.reject(*world.receive())
    tokens = [one.token for one in world.queues.receive(JOBS, "h").messages("jobs")]
    world.queues.reject(JOBS, "h", tokens)
    world.queues.tidy()
    out = world.engine.describe_topic(JOBS).name._replace(topic="out")
    names = [LetterId(one.partition, one.id) for one in world.read(out)]
    assert len(names) == 2
    assert world.queues.discard(JOBS, "g", letters=names) == 1
    assert world.queues.discard(JOBS, "h", letters=names) == 1
    assert world.queues.redrive(JOBS, "g") == world.queues.redrive(JOBS, "h") == 0


def test_more_settled_letters_than_a_position_can_carry_are_refused() -> None:
    assert settled_text([]) == "" and settled_in("") == frozenset()
    assert settled_text([7, 5, 8, 6, 1]) == "settled:1,5-8"
    assert settled_in("settled:1,5-8") == {1, 5, 6, 7, 8}
    assert len(settled_in(settled_text(range(90_000)))) == 90_000
    with pytest.raises(Invalid, match="the oldest ones first"):
        settled_text(range(0, 4_000, 2))


@pytest.mark.parametrize(
    "metadata",
    ["settled:x", "settled:1,", "settled:5-1-2", "settled:0-99999999999", "1", "Settled:1"],
)
def test_metadata_of_another_shape_settle_nothing(metadata: str) -> None:
    assert settled_in(metadata) == frozenset()
