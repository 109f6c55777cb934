"""Arguments that are misspelt, swapped or out of bounds raise an error that names the field, the
value and the allowed values, before anything is sent; durations are numbers, a `timedelta` or
text."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.contracts.buses import BOTH, bus_by
from tms.errors import Invalid
from tms.model.quantity import milliseconds, seconds

NAN = math.nan
Call = Callable[[Any], object]  # a call that a type checker would refuse, too


@pytest.fixture(scope="module", params=BOTH)
def bus(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tms.Bus]:
    with bus_by(request.param, tmp_path_factory.mktemp("arguments")) as bus:
        bus.create_topic("t", partitions=2)
        bus.publish("t", b"0", partition=0)
        bus.queue("t", group="q")
        yield bus


WRONG: dict[str, tuple[str, Call]] = {
    # partitions
    "text in partitions": ("partitions", lambda bus: bus.consumer("t", partitions=["0"])),
    "partitions as text": ("partitions", lambda bus: bus.consumer("t", partitions="0")),
    "partitions as number": ("partitions", lambda bus: bus.consumer("t", partitions=0)),
    "a flag in partitions": ("partitions", lambda bus: bus.consumer("t", partitions=[True])),
    "a negative partition": ("partitions", lambda bus: bus.fetch("t", partitions=[-1])),
    "fetch of text": ("partitions", lambda bus: bus.fetch("t", partitions="0")),
    "start by text": ("start", lambda bus: bus.fetch("t", {"0": "earliest"})),
    "publish to text": ("partition", lambda bus: bus.publish("t", b"", partition="0")),
    "publish to a flag": ("partition", lambda bus: bus.publish("t", b"", partition=True)),
    "inspect text": ("partition", lambda bus: bus.inspect("t", "0")),
    # topics and groups
    "a topic in bytes": ("topic", lambda bus: bus.publish(b"t", b"")),
    "no topic": ("topic", lambda bus: bus.fetch(None)),
    "a number as topic": ("topic", lambda bus: bus.create_topic(5)),
    "a group in bytes": ("group", lambda bus: bus.consumer("t", group=b"g")),
    "None as group": ("group", lambda bus: bus.queue("t", group=None)),
    "a number as group": ("group", lambda bus: bus.positions("t", group=5)),
    # messages
    "a value as text": ("value", lambda bus: bus.publish("t", "text")),
    "a number as value": ("value", lambda bus: bus.publish("t", 5)),
    "a key as text": ("key", lambda bus: bus.publish("t", b"", "key")),
    "headers as pairs": ("headers", lambda bus: bus.publish("t", b"", headers=[("a", b"b")])),
    "a header as text": ("headers", lambda bus: bus.publish("t", b"", headers={"a": "b"})),
    "values as bytes": ("values", lambda bus: bus.publish_many("t", b"abc")),
    "values as text": ("values", lambda bus: bus.publish_many("t", "abc")),
    "keys as bytes": ("keys", lambda bus: bus.publish_many("t", [b"a"], b"k")),
    "fewer keys": ("keys", lambda bus: bus.publish_many("t", [b"a", b"b"], [b"k"])),
    "an unknown durability": ("durability", lambda bus: bus.publish("t", b"", durability="sync")),
    "a flag as durability": ("durability", lambda bus: bus.publish("t", b"", durability=True)),
    "an unknown compression": (
        "compression",
        lambda bus: bus.publish_many("t", [b""], compression="gzip"),
    ),
    "an expectation in bytes": ("expect", lambda bus: bus.publish("t", b"", b"k", expect=b"x")),
    # durations
    "no number as time-out": ("timeout_s", lambda bus: bus.publish("t", b"", timeout_s=NAN)),
    "no end as time-out": ("timeout_s", lambda bus: bus.publish("t", b"", timeout_s=math.inf)),
    "a flag as time-out": ("timeout_s", lambda bus: bus.publish_many("t", [], timeout_s=True)),
    "a word as time-out": ("timeout_s", lambda bus: bus.producer("t", timeout_s="soon")),
    "a negative time-out": ("timeout_s", lambda bus: bus.transaction(timeout_s=-1)),
    "bytes as time-out": ("timeout_s", lambda bus: bus.erase("t", key=b"k", timeout_s=b"1")),
    "no number as wait": ("wait_s", lambda bus: bus.fetch("t", wait_s=NAN)),
    "a negative wait": ("wait_s", lambda bus: bus.consumer("t", wait_s=-1)),
    "a negative timedelta": ("wait_s", lambda bus: bus.fetch("t", wait_s=-timedelta(seconds=1))),
    "a wait in fortnights": ("wait_s", lambda bus: bus.fetch("t", wait_s="1 fortnight")),
    "no number as linger": ("linger_ms", lambda bus: bus.producer("t", linger_ms=NAN)),
    "a long linger": ("linger_ms", lambda bus: bus.producer("t", linger_ms="2m")),
    "a flag as session": (
        "session_s",
        lambda bus: bus.consumer("t", group=tms.Group("g", session_s=True)),
    ),
    "a short session": (
        "session_s",
        lambda bus: bus.consumer("t", group=tms.Group("g", session_s="1ms")),
    ),
    "no number as delay": ("delay", lambda bus: bus.publish_later("t", b"", delay=NAN)),
    "a word as delay": ("delay", lambda bus: bus.publish_later("t", b"", delay="soon")),
    "a flag as time": ("at", lambda bus: bus.publish_later("t", b"", at=True)),
    "text as time": ("at", lambda bus: bus.publish_later("t", b"", at="tomorrow")),
    "a lease that is none": ("lease_s", lambda bus: bus.queue("t", group="r", lease_s=NAN)),
    "retention in fortnights": (
        "retention",
        lambda bus: bus.create_topic("u", retention="1 fortnight"),
    ),
    "retention of nothing": ("retention", lambda bus: bus.create_topic("u", retention=0)),
    "a flag as retention": ("retention", lambda bus: bus.update_topic("t", retention=True)),
    "tombstones for ever and a day": (
        "tombstone_retention",
        lambda bus: bus.create_topic("u", tombstone_retention="200000d"),
    ),
    # numbers
    "bytes as text": ("bytes_max", lambda bus: bus.fetch("t", bytes_max="1")),
    "bytes with a fraction": ("bytes_max", lambda bus: bus.consumer("t", bytes_max=1.5)),
    "no bytes": ("bytes_max", lambda bus: bus.fetch("t", bytes_max=0)),
    "inspect a flag": ("limit", lambda bus: bus.inspect("t", 0, True)),
    "a flag as batch": ("batch_bytes", lambda bus: bus.producer("t", batch_bytes=True)),
    "half a request": ("in_flight_max", lambda bus: bus.producer("t", in_flight_max=1.5)),
    "a flag as partitions": ("partitions", lambda bus: bus.create_topic("u", True)),
    "partitions of a topic as text": ("partitions", lambda bus: bus.create_topic("u", "2")),
    # others
    "a word as flag": ("stop_at_end", lambda bus: bus.consumer("t", stop_at_end="no")),
    "a number as start": ("start", lambda bus: bus.consumer("t", 5)),
    "partitions as start": ("start", lambda bus: bus.consumer("t", [0])),
    "a number as filter": ("where", lambda bus: bus.consumer("t", where=5)),
    "an unknown isolation": ("isolation", lambda bus: bus.consumer("t", isolation="dirty")),
    "an unknown delivery": (
        "delivery",
        lambda bus: bus.consumer("t", group=tms.Group("g", delivery="once")),
    ),
    "no function": (
        "on_assigned",
        lambda bus: bus.consumer("t", group=tms.Group("g", on_assigned=5)),
    ),
    "positions as text": ("positions", lambda bus: bus.set_positions("t", "earliest", group="g")),
    "a position by text": (
        "positions",
        lambda bus: bus.set_positions("t", {"0": "earliest"}, group="g"),
    ),
    "a key to erase as text": ("key", lambda bus: bus.erase("t", key="k")),
    "an id to erase as text": ("id", lambda bus: bus.erase("t", id="k")),
    "no function to apply": ("apply", lambda bus: bus.view("t", apply=5)),
    "a delayed id as number": ("id", lambda bus: bus.cancel_delayed("t", 5)),
}


WRONG_OF_A_QUEUE: dict[str, tuple[str, Call]] = {
    "a wait of a queue": ("wait_s", lambda queue: queue.receive(1, "x")),
    "a lease without unit": (
        "lease_s",
        lambda queue: queue.extend([], lease_s="long"),
    ),
    "no number as nack": ("delay_s", lambda queue: queue.nack([], NAN)),
    "a back-off in words": (
        "backoff_max_s",
        lambda queue: queue.update(backoff_max_s="long"),
    ),
    "a flag as limit": ("limit", lambda queue: queue.receive(True)),
    "no limit": ("limit", lambda queue: queue.receive(0)),
    "a limit as text": ("limit", lambda queue: queue.redrive("9")),
    "messages as number": ("tokens", lambda queue: queue.ack(5)),
    "messages as bytes": ("tokens", lambda queue: queue.ack(b"token")),
}


def require_names(error: Invalid, field: str) -> None:
    assert error.details.get("field") == field, error
    assert len(error.message) < 400


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_names_field_value_and_what_is_allowed(bus: tms.Bus, what: str) -> None:
    field, call = WRONG[what]
    before = bus.offsets("t", "latest")
    with pytest.raises(Invalid) as raised:
        call(bus)
    require_names(raised.value, field)
    assert bus.offsets("t", "latest") == before


@pytest.mark.parametrize("what", WRONG_OF_A_QUEUE)
def test_so_does_one_of_a_queue(bus: tms.Bus, what: str) -> None:
    field, call = WRONG_OF_A_QUEUE[what]
    with pytest.raises(Invalid) as raised:
        call(bus.queue("t", group="q"))
    require_names(raised.value, field)


@pytest.mark.parametrize("what", [*WRONG, *WRONG_OF_A_QUEUE])
def test_asyncio_refuses_the_same(what: str, tmp_path: Path) -> None:
    field, call = (WRONG | WRONG_OF_A_QUEUE)[what]

    async def refused() -> Invalid:
        async with tms.aio.open(tmp_path) as bus:
            await bus.create_topic("t", partitions=2)
            queue = await bus.queue("t", group="q")
            with pytest.raises(Invalid) as raised:
                made: Any = call(bus if what in WRONG else queue)
                if inspect.isawaitable(made):
                    await made
                else:
                    async with made:
                        pass
            return raised.value

    require_names(asyncio.run(refused()), field)


@pytest.mark.parametrize("arguments", [("t", "g"), ("g", "t")])
@pytest.mark.parametrize("name", ["queue", "describe_group", "positions", "forget_positions"])
def test_a_group_is_named_so_that_it_is_not_taken_for_the_topic(
    bus: tms.Bus, name: str, arguments: tuple[str, str]
) -> None:
    with pytest.raises(TypeError, match="positional"):
        getattr(bus, name)(*arguments)


@pytest.mark.parametrize("timeout_s", [NAN, True, "soon", b"1", -1])
def test_the_time_out_of_a_bus_is_a_duration(timeout_s: Any, tmp_path: Path) -> None:
    for make in (tms.connect, tms.aio.connect):
        with pytest.raises(Invalid, match="timeout_s"):
            make("http://127.0.0.1:1", timeout_s=timeout_s)
    for opened in (tms.open, tms.aio.open):
        with pytest.raises(Invalid, match="timeout_s"):
            opened(tmp_path / "never", timeout_s=timeout_s)
    assert not (tmp_path / "never").exists()


# -- durations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "in_seconds"),
    [
        (5, 5),
        (0.25, 0.25),
        ("5", 5),
        ("5s", 5),
        ("500ms", 0.5),
        ("700ms", 0.7),
        ("1.5h", 5_400),
        (" 2m ", 120),
        ("14d", 14 * 86_400),
        ("2w", 14 * 86_400),
        (timedelta(milliseconds=250), 0.25),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_a_number_a_timedelta_or_text(
    value: float | timedelta | str, in_seconds: float
) -> None:
    assert seconds("wait_s", value) == in_seconds
    assert milliseconds("linger_ms", timedelta(seconds=in_seconds)) == in_seconds * 1_000
    if isinstance(value, str) and not value.isdigit():
        assert milliseconds("linger_ms", value) == in_seconds * 1_000


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-5s",
        "5 s",
        "5S",
        "1e3",
        "0x5",
        "inf",
        "nan",
        "٥s",
        "5,5s",
        "1" * 16,
        None,
        b"5s",
        [],
    ],
)
def test_nothing_else_is_one(value: Any) -> None:
    with pytest.raises(Invalid, match="wait_s is a duration") as raised:
        seconds("wait_s", value)
    require_names(raised.value, "wait_s")
    assert all(text in raised.value.message for text in ("number in s", "timedelta", '"500ms"'))


def test_durations_are_taken_wherever_one_is_meant(bus: tms.Bus) -> None:
    five = timedelta(seconds=5)
    info = bus.create_topic("durations", retention=five, tombstone_retention="1.5h")
    assert info.settings.retention_ms == 5_000
    assert info.settings.tombstone_retention_ms == 5_400_000
    assert bus.update_topic("durations", retention=7).settings.retention_ms == 7_000
    queue = bus.queue("durations", group="d", lease_s="5m", backoff_first_s=timedelta(seconds=1))
    assert queue.settings.lease_s == 300 and queue.describe().settings.backoff_first_s == 1
    assert queue.update(lease_s=timedelta(minutes=1)).settings.lease_s == 60
    bus.publish("durations", b"now", timeout_s="10s")
    [message] = queue.receive(wait_s="10s")
    assert queue.extend(message, lease_s="1m").done == 1
    assert queue.nack(message, delay_s="0ms").done == 1
    id = bus.publish_later("durations", b"later", delay="2h", timeout_s=five)
    assert bus.cancel_delayed("durations", id, timeout_s="5s")
    with bus.producer("durations", linger_ms=timedelta(milliseconds=1), timeout_s=five) as producer:
        producer.send(b"batched")
    assert len(bus.fetch("durations", wait_s="1s").batches) > 0
    consumer = bus.consumer(
        "durations",
        group=tms.Group("c", session_s=five),
        stop_at_end=True,
        wait_s="1s",
        timeout_s="5s",
    )
    assert [one.value for one in consumer] == [b"now", b"batched"]
    consumer.close()
    bus.delete_topic("durations")
