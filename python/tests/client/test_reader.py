"""The loop of a consumer when a call is interrupted: by an error, by a close from elsewhere, by
another call, or by the group."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.client.consumer import Consumer
from tms.client.cursor import PARTITIONS_PER_FETCH, Batch, Cursor
from tms.client.group_reading import MemberReader
from tms.client.http.addresses import ServiceAddresses
from tms.client.member import Member
from tms.client.reading import Reader
from tms.errors import DataCorrupt, Invalid

VALUES = [b"%d" % number for number in range(6)]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tms.Bus]:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t", partitions=2, durability="written")
        bus.publish_many("t", VALUES[:3], partition=0)
        bus.publish_many("t", VALUES[3:], partition=1)
        yield bus


def _reader(consumer: Consumer[Any]) -> Reader[Any]:
    return consumer._reader


def _member(consumer: Consumer[Any]) -> Member:
    reader = consumer._reader
    assert isinstance(reader, MemberReader)
    return reader.member


def _values(consumer: Consumer[Any], timeout_s: float = 0.0) -> list[bytes | None]:
    """The values of polls until one brings none."""
    values = []
    while (message := consumer.poll(timeout_s)) is not None:
        values.append(message.value)
    return values


def _once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception) -> None:
    """The next call of a method raises this error."""

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize("polls", [False, True], ids=["iterated", "polled"])
def test_a_close_while_a_message_is_handed_out_does_not_commit_behind_it(
    bus: tms.Bus, polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tms.Group("g", delivery="at-least-once")
    consumer = bus.consumer("t", group=group)
    hand_out = Member.hand_out

    def close_and_hand_out(member: Member, message: Any) -> None:
        monkeypatch.undo()
        consumer.close()  # as another thread may at this moment
        hand_out(member, message)

    monkeypatch.setattr(Member, "hand_out", close_and_hand_out)
    assert (consumer.poll(PATIENCE_S) if polls else next(iter(consumer), None)) is None
    with bus.consumer("t", group=group, stop_at_end=True) as rest:
        assert sorted(message.value or b"" for message in rest) == VALUES


def test_a_poll_after_one_that_could_not_claim_claims(
    bus: tms.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tms.Group("g", delivery="at-most-once")
    consumer = bus.consumer("t", group=group)
    _once(monkeypatch, Member, "claim", Invalid("The claim fails."))
    with pytest.raises(Invalid, match="claim fails"):
        consumer.poll(PATIENCE_S)
    claims: list[int] = []
    claim = Member.claim

    def counted(member: Member) -> None:
        claims.append(1)
        claim(member)

    monkeypatch.setattr(Member, "claim", counted)
    assert consumer.poll(PATIENCE_S) is not None
    assert claims


def test_a_poll_after_one_that_met_damage_does_not_pass_the_batch(
    bus: tms.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bus.consumer("t")
    _once(monkeypatch, Batch, "messages", DataCorrupt("The block is damaged."))
    with pytest.raises(DataCorrupt):
        consumer.poll(PATIENCE_S)
    assert sorted(value or b"" for value in _values(consumer)) == VALUES


def test_polls_after_an_error_of_on_revoked_bring_nothing_of_the_revoked_partition(
    bus: tms.Bus,
) -> None:
    revoked: list[int] = []

    def refuse(partitions: list[int]) -> None:
        revoked.extend(partitions)
        raise RuntimeError("The program cannot let go.")

    consumer = bus.consumer("t", group=tms.Group("g", on_revoked=refuse))
    assert consumer.poll(PATIENCE_S) is not None
    other = bus.consumer("t", group="g")
    assert other.poll() is None
    _member(consumer).look_now()
    with pytest.raises(RuntimeError, match="cannot let go"):
        consumer.poll(PATIENCE_S)
    [partition] = revoked
    kept = VALUES[3:] if partition == 0 else VALUES[:3]
    assert set(_values(consumer)) <= set(kept)


def test_a_batch_that_was_read_counts_once_as_handed_out(
    bus: tms.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bus.consumer("t", partitions=[0])
    assert [consumer.poll(PATIENCE_S) for _ in range(3)]
    handed: list[Batch[Any]] = []
    hand_out = Cursor.hand_out

    def counted(cursor: Cursor, batch: Batch[Any]) -> None:
        handed.append(batch)
        hand_out(cursor, batch)

    _once(monkeypatch, Reader, "_hand_back", Invalid("The look fails."))
    with monkeypatch.context() as counting:
        counting.setattr(Cursor, "hand_out", counted)
        with pytest.raises(Invalid, match="look fails"):
            consumer.poll()
        counting.setattr(Cursor, "hand_out", counted)
        assert consumer.poll() is None
    assert len(handed) == 1


def test_a_member_that_reads_to_the_end_waits_for_its_paused_partitions(bus: tms.Bus) -> None:
    consumer = bus.consumer("t", group="g", stop_at_end=True)
    first = consumer.poll(PATIENCE_S)
    assert first is not None
    consumer.pause([0, 1])
    assert consumer.poll(0.01) is None
    assert sorted(_member(consumer)._holding) == [0, 1]  # it has not left the group
    consumer.resume([0, 1])
    rest = [message.value for message in consumer]
    assert sorted([first.value, *rest], key=bytes) == VALUES  # type: ignore[arg-type]


def test_a_seek_that_fails_loses_no_messages(bus: tms.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (b"6", b"7"):
        bus.publish("t", value, partition=0)
    consumer = bus.consumer("t", partitions=[0])
    assert [consumer.poll(PATIENCE_S) for _ in range(3)]
    _once(monkeypatch, Reader, "_latest", Invalid("The service refuses."))
    with pytest.raises(Invalid, match="service refuses"):
        consumer.seek(0, "latest")
    assert _values(consumer) == [b"6", b"7"]


def test_a_second_poll_leaves_the_limit_of_the_first(
    bus: tms.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bus.consumer("t", "latest")
    advance: Callable[..., Any] = Reader._advance
    until_s: list[float | None] = []

    async def polled_twice(reader: Reader[Any]) -> None:
        before_s = reader._until_s
        with pytest.raises(Invalid, match="one iteration at a time"):
            consumer.poll(PATIENCE_S)
        until_s.extend((before_s, reader._until_s))
        await advance(reader)

    monkeypatch.setattr(Reader, "_advance", polled_twice)
    assert consumer.poll() is None
    assert until_s[0] is not None and until_s[0] == until_s[1]


def test_a_seek_does_not_fetch_from_a_partition_that_is_to_be_released(bus: tms.Bus) -> None:
    consumer = bus.consumer("t", group="g")
    assert all(consumer.poll(PATIENCE_S) for _ in VALUES)  # and it acknowledges none
    other = bus.consumer("t", group="g")
    assert other.poll() is None
    member = _member(consumer)
    member.look_now()
    member.tend()
    [partition] = member._releasing
    consumer.seek(partition, "earliest")
    asked, _ = _reader(consumer).cursor.ask(0)
    assert [position.partition for position in asked] == [1 - partition]


def test_iterations_that_are_left_give_all_partitions_their_turn(bus: tms.Bus) -> None:
    bus.create_topic("wide", partitions=PARTITIONS_PER_FETCH + 1)
    for _ in range(4):
        bus.publish("wide", b"first", partition=0)
    bus.publish("wide", b"last", partition=PARTITIONS_PER_FETCH)
    consumer = bus.consumer("wide", wait_s=0.01)
    assert b"last" in [next(iter(consumer)).value for _ in range(3)]


def test_a_fetch_that_is_dropped_does_not_shun_its_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    avoided: list[object] = []
    monkeypatch.setattr(ServiceAddresses, "avoid", lambda _, address: avoided.append(address))
    with serving() as served:
        served.create("t")
        url = served.url
        with tms.connect(url) as bus:
            bus.publish_many("t", VALUES)
            consumer = bus.consumer("t")
            for message in consumer:
                consumer.pause([0])  # while the next fetch waits
                assert consumer.assignment() == [0]
                assert message.value == VALUES[0]
                break
            consumer.resume([0])
            assert _values(consumer, 0.1) == VALUES[1:]
        asyncio.run(_pause_in_an_iteration(url))
    assert not avoided


async def _pause_in_an_iteration(url: str) -> None:
    async with tms.aio.connect(url) as bus:
        consumer = bus.consumer("t")
        async for _ in consumer:
            await asyncio.sleep(0)  # the next fetch begins
            await consumer.pause([0])
            break
