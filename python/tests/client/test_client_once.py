"""A publish whose answer is lost is stored once, or the caller gets an error that says that the
outcome is unknown; and a producer goes on when the service does. With threads and with asyncio,
here and over HTTP."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import tms
import tms.aio
from tests.client.test_client_faults import APPENDED, TOPIC, numbers, pretending, refused
from tests.clocks import ManualClock
from tests.http_kit import Client, serving
from tests.log_kit import block, seen
from tests.waiting import PATIENCE_S, until
from tms.block import Compression, encode
from tms.client import delivery
from tms.client.delivery import Delivery, Numbering, Unacknowledged, deliver
from tms.client.transport import PendingAnswer
from tms.engine.config import EngineConfig
from tms.errors import (
    Closed,
    OutcomeUnknown,
    OutOfOrderSequence,
    Overloaded,
    TimedOut,
    TMSError,
    TopicNotFound,
    Unavailable,
)
from tms.log.partition import LogLimits
from tms.model.message import KEY_BIT, Appended, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName

NAME = TopicName.parse("t")
CROWD = 120
FEW = EngineConfig(log=LogLimits(producers=CROWD // 2))
Publish = Callable[[str, Sequence[bytes]], None]


def _sync(url: str, values: Sequence[bytes]) -> None:
    with tms.connect(url) as bus:
        for value in values:
            bus.publish("t", value)


def _sync_many(url: str, values: Sequence[bytes]) -> None:
    with tms.connect(url) as bus, bus.producer("t") as producer:
        for value in values:
            producer.send(value)
            producer.flush()


def _aio(url: str, values: Sequence[bytes]) -> None:
    async def publish() -> None:
        async with tms.aio.connect(url) as bus:
            for value in values:
                await bus.publish("t", value)

    asyncio.run(publish())


def _aio_many(url: str, values: Sequence[bytes]) -> None:
    async def publish() -> None:
        async with tms.aio.connect(url) as bus, bus.producer("t") as producer:
            for value in values:
                await producer.send(value)
                await producer.flush()

    asyncio.run(publish())


ways = pytest.mark.parametrize("publish", [_sync, _sync_many, _aio, _aio_many])


# -- others publish while an answer is lost --------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("bit", [0, KEY_BIT])
@ways
def test_a_publish_is_stored_once_though_many_others_come_in_between(
    publish: Publish, bit: int, before: int
) -> None:
    values = [b"%d" % number for number in range(before + 1)]
    with serving(config=FEW) as served:
        served.create("t", durability="written")
        engine, met = served.service.engine, 0
        right = type(engine).submit

        def crowd() -> None:
            for producer in range(1, CROWD):
                right(engine, NAME, [NewBlock(0, block(b"x", producer=bit | producer))])

        def submit(*arguments: Any) -> Any:
            nonlocal met
            pending = right(engine, *arguments)
            met += 1
            if met == len(values):
                pending.result(PATIENCE_S)
                crowd()
                raise Unavailable("The answer is lost.")
            return pending

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "submit", submit)
            publish(served.url, values)
        found = engine.fetch(NAME, [PartitionPosition(0, Position.earliest())], 1 << 30)
        stored = [one.value for one in seen(found.blocks)]
    assert [one for one in stored if one != b"x"] == values


def test_a_key_is_stored_once_though_many_others_come_in_between() -> None:
    with serving(config=FEW) as served:
        served.create("t", durability="written")
        engine = served.service.engine
        path = "/v2/namespaces/default/topics/t/messages"
        body = json.dumps({"messages": [{"value": "v"}]}).encode()
        with Client(served.address) as client:
            first = client.request("POST", path, body, Idempotency_Key="one").json
            for producer in range(1, CROWD):
                for bit in (0, KEY_BIT):
                    engine.submit(NAME, [NewBlock(0, block(b"x", producer=bit | producer))])
            again = client.request("POST", path, body, Idempotency_Key="one").json
    assert again == first


# -- a service that has forgotten ------------------------------------------------------------------


@ways
def test_a_publish_in_doubt_whose_producer_is_forgotten_is_not_made_anew(publish: Publish) -> None:
    came: list[tuple[int, int]] = []

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return TOPIC
        came.append(numbers(request))
        if len(came) == 1:
            return APPENDED
        if len(came) == 2:
            return refused(Unavailable("The answer is lost.", outcome="unknown"))
        return refused(OutOfOrderSequence("0 is next.", expected=0))

    with pretending(answer) as url, pytest.raises(OutcomeUnknown, match="may be stored") as unknown:
        publish(url, [b"a", b"b"])
    assert not unknown.value.retriable
    assert {"topic": "t", "partition": 0, "messages": 1}.items() <= (unknown.value.details.items())
    assert {producer for producer, _ in came} == {came[0][0]}, "it began anew"


def _deliver(answers: Sequence[TMSError | None], clock: ManualClock | None = None) -> list[int]:
    """Deliver a block with these answers; returns the producer ids of its attempts."""
    clock, left = clock or ManualClock(), [*answers]
    came: list[int] = []

    def append(name: TopicName, blocks: Any, durability: Any, timeout_s: float) -> list[Appended]:
        came.append(int.from_bytes(blocks[0].block[32:40], "big"))
        clock.pass_ms(1_000)
        if (error := left.pop(0)) is not None:
            raise error
        return [Appended(0, 1, 0, 1, 0, False)]

    numbering = Numbering()
    numbering.take((NAME, 0))
    producer, sequence = numbering.take((NAME, 0))
    entry = NewBlock(0, encode([b"v"], producer_id=producer, producer_sequence=sequence))
    how = Delivery(NAME, numbering, None, Compression.NONE, 3_600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda pause_s: None)
        deliver(append, Unacknowledged(how, [entry]), clock, 3_600)
    assert not left
    return came


FORGOTTEN = OutOfOrderSequence("0 is next.", expected=0)
MISSING = OutOfOrderSequence("1 is next.", expected=1)
LOST = Unavailable("Lost.", outcome="unknown")


@pytest.mark.parametrize(
    "answers",
    [
        [FORGOTTEN, FORGOTTEN, None],
        [Overloaded("Full."), FORGOTTEN, FORGOTTEN, None],
        [LOST, MISSING, MISSING, None],
    ],
    ids=["refused", "refused for want of room", "known, and not stored"],
)
def test_a_block_that_cannot_be_stored_begins_anew(answers: list[TMSError | None]) -> None:
    came = _deliver(answers)
    assert len({*came}) == 2 and came[-1] != came[-2]


def test_a_block_in_doubt_is_not_repeated_for_longer_than_it_is_remembered() -> None:
    clock = ManualClock()
    began_s = clock.monotonic_s()
    with pytest.raises(OutcomeUnknown, match="no attempt"):
        _deliver([LOST] * 2_000, clock)
    assert delivery.REPEATED_S <= clock.monotonic_s() - began_s <= delivery.REPEATED_S + 5


def test_a_block_that_was_only_refused_is_repeated_as_long_as_its_caller_waits() -> None:
    assert len({*_deliver([*[Overloaded("Full.")] * 700, None])}) == 1


# -- a producer that timed out ---------------------------------------------------------------------


@contextlib.contextmanager
def _away_at_first() -> Iterator[tuple[str, list[tuple[int, int]], list[bool]]]:
    """A service that answers once the list is not empty: its URL, the received blocks, the list."""
    came: list[tuple[int, int]] = []
    back: list[bool] = []

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return TOPIC
        if b"TMSB" not in request:  # the rest of a block whose caller did not wait
            return None
        came.append(numbers(request))
        return APPENDED if back else refused(Unavailable("Away.", outcome="unknown"))

    with pretending(answer) as url:
        yield url, came, back


def test_a_producer_goes_on_when_the_service_is_back() -> None:
    with _away_at_first() as (url, came, back), tms.connect(url, timeout_s=0.3) as bus:
        producer = bus.producer("t")
        producer.send(b"a")
        for _ in range(2):
            with pytest.raises((Unavailable, TimedOut)) as late:
                producer.flush()
            assert late.value.retriable and late.value.details["unacknowledged"] == 1
        with pytest.raises((Unavailable, TimedOut)):
            producer.send(b"b")
        back.append(True)
        until(lambda: producer._sending.stalled is None)
        assert producer._sending.unacknowledged() == 0, "a refused send was accepted"
        producer.send(b"b")
        with contextlib.suppress(TimedOut):  # on a loaded machine
            producer.flush()
        until(lambda: producer._sending.unacknowledged() == 0)
        producer.close()
    first = came[0][0]
    assert {*came} == {(first, 0), (first, 1)} and came[-1] == (first, 1)


def test_an_asyncio_producer_goes_on_when_the_service_is_back() -> None:
    async def work(url: str, back: list[bool]) -> None:
        async with tms.aio.connect(url, timeout_s=0.3) as bus:
            producer = bus.producer("t")
            await producer.send(b"a")
            for _ in range(2):
                with pytest.raises((Unavailable, TimedOut)) as late:
                    await producer.flush()
                assert late.value.retriable and late.value.details["unacknowledged"] == 1
            with pytest.raises((Unavailable, TimedOut)):
                await producer.send(b"b")
            assert producer._sending.unacknowledged() == 1, "a refused send was accepted"
            back.append(True)
            await flushed(producer)
            await producer.send(b"b")
            await flushed(producer)
            await producer.close()

    async def flushed(producer: tms.aio.AsyncProducer[Any]) -> None:
        """A loaded machine may answer late, so the producer may have to be asked again."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unavailable, TimedOut):
                    return await producer.flush()

    with _away_at_first() as (url, came, back):
        asyncio.run(work(url, back))
    first = came[0][0]
    assert {*came} == {(first, 0), (first, 1)} and came[-1] == (first, 1)


def test_a_producer_s_thread_goes_on_by_itself_when_the_service_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _away_at_first() as (url, came, back), tms.connect(url, timeout_s=0.3) as bus:
        producer, asked = bus.producer("t"), list[int]()
        submit = producer._channel.submit

        def noted(
            name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
        ) -> PendingAnswer[list[Appended]]:
            asked.append(len(blocks))
            return submit(name, blocks, durability)

        monkeypatch.setattr(producer._channel, "submit", noted)
        producer.send(b"a")
        with pytest.raises((Unavailable, TimedOut)):
            producer.flush()
        back.append(True)
        until(lambda: producer._sending.unacknowledged() == 0)
        producer.close()
    assert {*asked} == {1}, "nothing was published"
    assert len({*came}) == 1


def test_send_many_says_how_many_it_has_accepted() -> None:
    values = [bytes(100)] * 50
    with _away_at_first() as (url, came, back), tms.connect(url, timeout_s=1.0) as bus:
        producer = bus.producer("t", batch_bytes=500, in_flight_max=1)
        with pytest.raises((Unavailable, TimedOut)) as late:
            producer.send_many(values)
        accepted = late.value.details["accepted"]
        assert 0 < accepted < len(values)
        assert late.value.details["unacknowledged"] == accepted
        back.append(True)
        producer.send_many(values[accepted:])
        producer.flush()
        producer.close()
    assert {number for _, number in came} == {*range(len({*came}))}


def test_an_asyncio_producer_counts_what_it_has_accepted_as_the_other_one_does() -> None:
    """A `send` that raises has not accepted its message; `send_many` returns the number of accepted
    ones."""

    async def work(url: str, back: list[bool]) -> None:
        async with tms.aio.connect(url, timeout_s=1.0) as bus:
            producer, accepted = bus.producer("t", batch_bytes=500, in_flight_max=1), 0
            with pytest.raises((Unavailable, TimedOut)) as late:
                while accepted < 50:
                    await producer.send(bytes(100))
                    accepted += 1
            assert producer._sending.unacknowledged() == accepted > 5
            assert late.value.retriable
            with pytest.raises((Unavailable, TimedOut)):
                await producer.send_many([bytes(100)] * 50)
            assert producer._sending.unacknowledged() == accepted, "it was stalled"
            back.append(True)
            await producer.flush()
            await producer.close()

    with _away_at_first() as (url, _, back):
        asyncio.run(work(url, back))


def test_an_asyncio_producer_that_has_ended_says_so_to_send_many() -> None:
    async def work(url: str) -> None:
        async with tms.aio.connect(url, timeout_s=3) as bus:
            producer = bus.producer("t", batch_bytes=500, in_flight_max=1)
            with pytest.raises(TopicNotFound):
                await producer.send_many([bytes(100)] * 50)

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return TOPIC
        return refused(TopicNotFound("It was deleted."))

    with pretending(answer) as url:
        asyncio.run(work(url))


def test_closing_says_how_many_messages_are_unknown_and_ends_the_producer() -> None:
    with _away_at_first() as (url, _, _), tms.connect(url, timeout_s=0.3) as bus:
        producer = bus.producer("t")
        producer.send(b"a")
        with pytest.raises((Unavailable, TimedOut)) as lost:
            producer.close()
        assert lost.value.details["unacknowledged"] == 1
        producer.close()
        with pytest.raises(Closed):
            producer.flush()
