"""The outcome of `Producer.send`: the id of the message, by threads and asyncio."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import NoReturn

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tests.waiting import until
from tms.client.receipts import Receipt
from tms.client.sending import dropped
from tms.errors import NotOwner, OutcomeUnknown, Unavailable
from tms.model.message import Appended


def test_the_outcome_of_a_message_is_its_id(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t", partitions=3)
        with bus.producer("t") as producer:
            sent = [producer.send(b"%d" % n, key=b"k%d" % (n % 5)) for n in range(100)]
            last = sent[-1].result()
            assert sent[-1].done() and all(one.done() for one in sent)
        stored = {message.value: message.id for message in bus.consumer("t", stop_at_end=True)}
        assert [one.result() for one in sent] == [stored[b"%d" % n] for n in range(100)]
        assert last == stored[b"99"]


def test_without_durability_there_is_no_id(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        with bus.producer("t", durability="none") as producer:
            assert producer.send(b"1").result() is None


def test_asyncio_awaits_the_outcome(tmp_path: Path) -> None:
    async def work() -> None:
        async with tms.aio.open(tmp_path / "data") as bus:
            await bus.create_topic("t")
            async with bus.producer("t") as producer:
                sent = [await producer.send(b"%d" % n) for n in range(50)]
                ids = [await one for one in sent]
                assert sent[0].done() and await sent[0].result() == ids[0]
            consumer = bus.consumer("t", stop_at_end=True)
            assert [message.id async for message in consumer] == ids

    asyncio.run(work())


def test_a_message_of_a_producer_that_has_ended_raises_its_error(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        producer = bus.producer("t", linger_ms=60_000)
        early = producer.send(b"1")
        assert early.result() is not None
        late = producer.send(b"2")
        assert not late.done()
        producer._sending.give_up(NotOwner("Another process owns the store."))
        with pytest.raises(NotOwner, match="Another process"):
            late.result()
        assert early.result() is not None
        with pytest.raises(NotOwner):
            producer.close()


def test_a_request_that_is_repeated_has_the_ids_of_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        monkeypatch.undo()
        raise Unavailable("The service is away.")

    with serving() as served:
        served.create("t")
        with tms.connect(served.url) as bus:
            with bus.producer("t", linger_ms=60_000) as producer:
                first = producer.send(b"1")
                assert first.result() is not None
                second = producer.send(b"2")
                monkeypatch.setattr(producer._channel, "submit", refuse)
                assert second.result() is not None
            ids = [message.id for message in bus.consumer("t", stop_at_end=True)]
            assert ids == [first.result(), second.result()]


def test_an_id_is_told_without_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = Receipt()
    receipt.appended = Appended(0, time_ms=7, sequence=10, count=3, base_offset=0)
    ids = receipt.appended.ids()
    monkeypatch.delattr(Appended, "ids")
    assert [receipt.id(number) for number in range(3)] == ids


def test_a_held_outcome_does_not_keep_its_producer(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        producer = bus.producer("t")
        sent = producer.send(b"1")
        assert sent.result() is not None
        held = weakref.ref(producer)
        del producer
        with pytest.warns(ResourceWarning, match="was not closed"):
            until(lambda: gc.collect() >= 0 and held() is None)
        assert sent.done() and sent.result() is not None


def test_a_message_of_a_dropped_producer_has_no_outcome(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        producer = bus.producer("t", linger_ms=60_000)
        sent = producer.send(b"1")
        producer._end.detach()
        with pytest.warns(ResourceWarning, match="1 messages may not be stored"):
            dropped(producer._sending)
        assert sent.done()
        with pytest.raises(OutcomeUnknown, match="was dropped"):
            sent.result()


def test_first_messages_that_are_sent_together_are_all_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with tms.aio.open(tmp_path / "data") as bus:
            await bus.create_topic("t")
            producer = bus.producer("t", linger_ms=60_000)
            await asyncio.gather(*(producer.send(b"%d" % n) for n in range(3)))
            await producer.close()
            consumer = bus.consumer("t", stop_at_end=True)
            assert sorted([message.value async for message in consumer]) == [b"0", b"1", b"2"]

    asyncio.run(work())
