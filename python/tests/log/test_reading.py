"""All readers of a partition agree with a plain list of its messages, whatever the geometry.

A seed draws the sizes of segments, blocks, pages and caches, and the events: messages,
transactions, erasing, truncation. An empty page is not the end; only the log says where it ends.
"""

import asyncio
from itertools import islice
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tms
import tms.aio
from tests.reading_kit import Partition, Row, partition
from tms.api import routes
from tms.errors import OffsetOutOfRange
from tms.model.position import Position, PositionKind
from tms.model.snapshot import Isolation

EARLIEST = Position.earliest()
SEEDS = st.integers(0, 2**32 - 1)


def in_it(one: Partition, changes: int) -> None:
    for _ in range(changes):
        one.change()


@pytest.mark.slow
@settings(max_examples=12)
@given(seed=SEEDS)
@example(seed=1)
@example(seed=38_075)  # truncated where everything behind is erased
def test_every_reader_gets_what_is_there_from_every_position(seed: int) -> None:
    with partition(seed) as one, tms.connect(one.url) as remote:
        local = tms.Bus(one.engine)
        in_it(one, Random(seed).choice((3, 20, 60)))
        with one.served.connect() as client:
            for position, expected in one.positions():
                assert one.fetched(position) == expected, position
                assert one.paged(remote, position) == expected, position
                for bus in (local, remote):
                    assert one.consumed(bus, position) == expected, position
                for media in (routes.JSON, routes.ARROW_STREAM):
                    assert one.over_http(client, position, media) == expected, position


def _began_before(position: Position, places: list[bytes], first: int) -> bool:
    """True if the message at `first` is of a publish that began before the position. Its messages
    before that may be gone."""
    if first and places[first] == places[first - 1]:
        return True
    return position.id is not None and places[first] < bytes(position.id)[:10]


@pytest.mark.slow
@settings(max_examples=10)
@given(seed=SEEDS)
@example(seed=1)
@example(seed=141)
def test_readers_of_other_protocols_and_rooms_get_it_too(seed: int) -> None:
    with partition(seed) as one, tms.connect(one.url) as remote:
        in_it(one, Random(seed).choice((3, 20, 60)))
        assert one.fetched(EARLIEST, Isolation.UNCOMMITTED) == one.everything
        assert one.beside() == one.rows
        with one.served.connect() as client:
            # Messages staged together share time and sequence there, and a read returns all or none
            # of them.
            places = [id for id, _ in one.polled(client, EARLIEST)]
            for position, _ in one.positions():
                if position.kind not in (PositionKind.OFFSET, PositionKind.LATEST):
                    shown = one.fetched(position, Isolation.UNCOMMITTED)
                    first = len(places) - len(shown)
                    if shown and _began_before(position, places, first):
                        shown = shown[places[first:].count(places[first]) :]
                    polled = one.polled(client, position)
                    assert [value for _, value in polled] == [m.value for m in shown], position
                    ids = [id for id, _ in polled]
                    assert ids == sorted(ids), position
                    assert all(id <= bytes(m.id)[:10] for id, m in zip(ids, shown, strict=True))
        start = remote.describe_topic("t").partition_infos[0].start_offset
        for _ in range(3):
            low, high = sorted(one.random.randrange(start, one.end + 1) for _ in range(2))
            if low < high:
                expected_rows = [m for m in one.rows if low <= m.offset < high]
                assert one.split(low, high) == expected_rows

        async def consumed() -> list[Row]:
            async with tms.aio.connect(one.url) as bus:
                return await one.consumed_async(bus, EARLIEST)

        assert asyncio.run(consumed()) == one.rows
        for number, bus in enumerate((tms.Bus(one.engine), remote)):
            assert one.received(bus, f"q{number}") == one.rows


@pytest.mark.slow
@settings(max_examples=10)
@given(seed=SEEDS)
@example(seed=1)
def test_what_is_said_of_places_agrees_with_what_is_there(seed: int) -> None:
    with partition(seed) as one:
        bus = tms.Bus(one.engine)
        in_it(one, Random(seed).choice((3, 20, 60)))
        info = bus.describe_topic("t").partition_infos[0]
        everything = one.everything
        assert info.first_id == (str(everything[0].id) if everything else None)
        assert info.end_offset == one.end
        for position, expected in one.positions():
            offset = bus.offsets("t", position)[0]
            before = [m.offset for m in one.rows if m not in expected]
            assert max(before, default=-1) < offset
            assert offset <= min((m.offset for m in expected), default=one.end)
            bus.set_positions("t", {0: position}, group="g")
            (lag,) = bus.describe_group("t", group="g").partitions
            assert lag.lag == (one.end - expected[0].offset if expected else 0), position
        for beyond in (one.end + 1, one.end + 100):
            with pytest.raises(OffsetOutOfRange) as refused:
                one.fetched(Position.offset(beyond))
            assert refused.value.details["end"] == one.end


@pytest.mark.slow
@settings(max_examples=10)
@given(seed=SEEDS)
@example(seed=1)
def test_a_filter_and_a_group_pass_over_what_is_gone(seed: int) -> None:
    with partition(seed) as one, tms.connect(one.url) as remote:
        in_it(one, Random(seed).choice((3, 20, 60)))
        for bus in (tms.Bus(one.engine), remote):
            for position, expected in one.positions():
                found = one.consumed(bus, position, where="key = a")
                assert found == [m for m in expected if m.key == b"a"], position
            group, found = f"g{id(bus)}", []
            while True:  # each of its consumers takes a few, and the group goes on behind them
                with bus.consumer("t", group=group, stop_at_end=True, bytes_max=300) as consumer:
                    some = [*islice(consumer, 7)]
                    consumer.ack()
                found += [m.offset for m in some]
                if not some:
                    break
            assert found == [m.offset for m in one.rows]
            view = bus.view("t")
            newest = {m.key: m.value for m in one.rows if m.key is not None}
            assert dict(view) == newest
            view.close()
