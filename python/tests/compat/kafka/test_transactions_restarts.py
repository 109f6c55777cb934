"""Transactions of Kafka's producers through restarts of the service: the producer goes on where it
was, after any of its requests."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kafka_kit import Broker, KafkaConnection, create_topic, kafka_serving
from tests.kafka_producer import TransactionalProducer, committed, offset_of, values
from tms.compat.kafka.errors import ErrorCode
from tms.model.topic import TopicName, TopicSettings
from tms.store.leveldb import LevelDBStore

TOPIC, OUT, GROUP = "in", "out", "group"
NONE = ErrorCode.NONE


class Step(NamedTuple):
    """A request of a producer that must succeed, and whether a later one aborts or fences it."""

    name: str
    take: Callable[[TransactionalProducer], ErrorCode]


STEPS = (
    Step("initialise", lambda one: one.initialise()),
    Step("add", lambda one: one.add(OUT, 0, 1)),
    Step("publish", lambda one: one.produce(OUT, b"a", b"b")),
    Step("publish elsewhere", lambda one: one.produce(OUT, b"c", partition=1)),
    Step("add group", lambda one: one.add_group(GROUP)),
    Step("move", lambda one: one.move(GROUP, TOPIC, 5, metadata="m")),
    Step("publish more", lambda one: one.produce(OUT, b"d")),
    Step("commit", lambda one: one.end()),
    Step("commit again", lambda one: one.end()),
    Step("add to the next", lambda one: one.add(OUT, 0)),
    Step("publish in the next", lambda one: one.produce(OUT, b"aborted")),
    Step("add group to the next", lambda one: one.add_group(GROUP)),
    Step("move in the next", lambda one: one.move(GROUP, TOPIC, 99)),
    Step("abort", lambda one: one.end(committed=False)),
    Step("abort again", lambda one: one.end(committed=False)),
    Step("add to the third", lambda one: one.add(OUT, 1)),
    Step("publish in the third", lambda one: one.produce(OUT, b"left", partition=1)),
    Step("go on", lambda one: one.initialise(goes_on=True)),
    Step("add to the last", lambda one: one.add(OUT, 0)),
    Step("publish in the last", lambda one: one.produce(OUT, b"e")),
    Step("commit the last", lambda one: one.end()),
)


def killed(data: Path) -> Path:
    """The directory as it would be if the process that has it open were killed now."""
    copy = data.with_name(data.name + "+")
    shutil.copytree(data, copy)
    return copy


@contextlib.contextmanager
def fresh(data: Path) -> Iterator[tuple[Broker, TransactionalProducer]]:
    """A service with the topics on a new directory, and a producer there."""
    with kafka_serving(LevelDBStore(data, create=True)) as broker, broker.connect() as kafka:
        for name in (TOPIC, OUT):
            assert not create_topic(kafka, name).error_code
        yield broker, TransactionalProducer(kafka, "id")


@contextlib.contextmanager
def restarted(data: Path, *producers: TransactionalProducer) -> Iterator[KafkaConnection]:
    """A service on that directory, and a connection to it, which the producers have now."""
    with kafka_serving(LevelDBStore(data, create=False)) as broker, broker.connect() as kafka:
        for producer in producers:
            producer.kafka = kafka
        yield kafka


def take(producer: TransactionalProducer, steps: tuple[Step, ...]) -> None:
    for step in steps:
        assert (step.name, step.take(producer)) == (step.name, NONE)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("at", range(len(STEPS)), ids=[step.name for step in STEPS])
def test_a_producer_goes_on_after_a_restart_between_any_two_requests(
    at: int, is_killed: bool, fast_path: Path
) -> None:
    data = fast_path / "data"
    with fresh(data) as (_, producer):
        take(producer, STEPS[: at + 1])
        if is_killed:
            data = killed(data)
    with restarted(data, producer) as kafka:
        take(producer, STEPS[at + 1 :])
        assert (values(kafka, OUT), values(kafka, OUT, 1)) == ([b"a", b"b", b"d", b"e"], [b"c"])
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == 5
        for partition in (0, 1):
            found = committed(kafka, OUT, 0, partition)
            assert found.last_stable_offset == found.high_watermark


def test_a_repeated_batch_is_known_after_a_restart(fast_path: Path) -> None:
    data = fast_path / "data"
    with fresh(data) as (_, producer):
        take(producer, STEPS[:2])
        first = producer.send((OUT, 0), [b"a"], 0)
        data = killed(data)
    with restarted(data, producer) as kafka:
        again = producer.send((OUT, 0), [b"a"], 0)
        assert (first.base_offset, again.base_offset, again.error_code) == (0, 0, NONE)
        assert producer.end() is NONE
        assert values(kafka, OUT) == [b"a"]


def test_a_producer_of_an_earlier_epoch_stays_fenced_after_a_restart(fast_path: Path) -> None:
    data = fast_path / "data"
    with fresh(data) as (_, producer):
        take(producer, STEPS[:7])
        later = TransactionalProducer(producer.kafka, "id")
        assert later.initialise() is NONE
        data = killed(data)
    with restarted(data, producer, later) as kafka:
        assert producer.end() is ErrorCode.PRODUCER_FENCED
        assert producer.produce(OUT, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
        take(later, STEPS[1:3])
        assert later.end() is NONE
        assert values(kafka, OUT) == [b"a", b"b"]
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == -1


def test_a_commit_that_a_crash_cut_short_is_aborted_and_its_producer_fenced(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fast_path / "data"
    with fresh(data) as (broker, producer):
        take(producer, STEPS[:7])
        commits = broker.served.service.engine.transactions.manager.commits
        copies: list[Path] = []

        def cut(*given: object) -> None:
            copies.append(killed(data))
            submit(*given)

        submit = commits.submit
        monkeypatch.setattr(commits, "submit", cut)
        assert producer.end() is NONE
        assert values(producer.kafka, OUT) == [b"a", b"b", b"d"]
    [data] = copies
    with restarted(data, producer) as kafka:
        assert producer.end() is ErrorCode.PRODUCER_FENCED
        assert values(kafka, OUT) == values(kafka, OUT, 1) == []
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == -1
        take(producer, STEPS[:8])
        assert values(kafka, OUT) == [b"a", b"b", b"d"]
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == 5


def test_a_commit_whose_answer_a_crash_took_is_answered_when_it_is_repeated(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fast_path / "data"
    with fresh(data) as (broker, producer):
        take(producer, STEPS[:7])
        transactions = broker.served.service.engine.transactions
        copies: list[Path] = []

        def crash(request: object) -> object:
            result = commit(request)
            copies.append(killed(data))
            return result

        commit = transactions.commit
        monkeypatch.setattr(transactions, "commit", crash)
        assert producer.end() is NONE
    [data] = copies
    with restarted(data, producer) as kafka:
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == 5
        assert producer.end() is NONE
        assert producer.end(committed=False) is ErrorCode.INVALID_TXN_STATE
        take(producer, STEPS[9:])
        assert values(kafka, OUT) == [b"a", b"b", b"d", b"e"]


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_an_abort_that_a_crash_cut_short_is_finished(
    is_before: bool, ends: bool, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort that the producer asks for, and one because it goes on with the next epoch."""
    data = fast_path / "data"
    with fresh(data) as (broker, producer):
        take(producer, STEPS[:7])
        named = (producer.number, producer.epoch)
        transactions = broker.served.service.engine.transactions
        copies: list[Path] = []

        def crash(id: int) -> object:
            if is_before:
                copies.append(killed(data))
            result = abort(id)
            if not is_before:
                copies.append(killed(data))
            return result

        abort = transactions.abort
        monkeypatch.setattr(transactions, "abort", crash)
        assert (
            producer.end(committed=False) if ends else producer.initialise(goes_on=True)
        ) is NONE
        producer.number, producer.epoch = named  # the answer is lost
    [data] = copies
    with restarted(data, producer) as kafka:
        if ends:
            assert producer.end() is ErrorCode.INVALID_TXN_STATE
            assert producer.end(committed=False) is NONE
        else:
            assert producer.end() is ErrorCode.PRODUCER_FENCED
            assert producer.initialise(goes_on=True) is NONE
            assert (producer.number, producer.epoch) == (named[0], named[1] + 1)
        assert offset_of(kafka, GROUP, TOPIC, stable=True) == -1
        found = committed(kafka, OUT)
        assert found.last_stable_offset == found.high_watermark == 3
        take(producer, STEPS[1:2])
        assert producer.produce(OUT, b"e") is NONE
        assert producer.end() is NONE
        assert values(kafka, OUT) == [b"e"]


def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(fast_path: Path) -> None:
    data = fast_path / "data"
    with fresh(data) as (broker, producer):
        for outcome in (True, False):
            take(producer, STEPS[:7])
            engine = broker.served.service.engine
            engine.delete_topic(TopicName.parse(OUT))
            assert producer.end(outcome) is NONE
            assert offset_of(producer.kafka, GROUP, TOPIC, stable=True) == 5
            engine.create_topic(TopicName.parse(OUT), TopicSettings(2))
            assert values(producer.kafka, OUT) == []
