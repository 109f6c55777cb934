"""Handlers of groups that raise: their message comes again in its place, then it is a dead letter;
also with asyncio."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tms
import tms.aio
from tests.cli.test_cli import Run, data, run  # noqa: F401
from tests.client.test_surviving import Restarted, away, service  # noqa: F401
from tests.gate_kit import in_thread
from tests.grouping import grouped
from tests.waiting import PATIENCE_S, until
from tms.client.client import Bus
from tms.client.committed import KnownPositions
from tms.client.member import Member
from tms.client.transaction import Transaction
from tms.errors import (
    Conflict,
    Fenced,
    Invalid,
    QueueNotFound,
    TimedOut,
    TMSError,
    TransactionConflict,
    Unavailable,
)
from tms.model.transaction import PositionChange

# ruff: noqa: F811
Handler = Callable[[tms.Message], object]
MODES = ("explicit", "at-least-once", "exactly-once")
POISON = b"7"
GOOD = [b"%d" % n for n in range(20) if b"%d" % n != POISON]
SLOW: dict[str, Any] = {"stop_at_end": False, "backoff_first_s": 60, "backoff_max_s": 60}
QUICK: dict[str, Any] = {"backoff_first_s": 0.01, "backoff_max_s": 0.02, "group": "g"}


class Kind:
    """The way in which a test runs a consumer with a function: with threads, or with asyncio."""

    def __init__(self, url: str, asynchronous: bool) -> None:
        self.url = url
        self.asynchronous = asynchronous
        self.timeout_s = 3.0  # of an outage a test waits for twice as long
        self.close: Callable[[], object] = lambda: None

    def handle(self, handler: Handler, **options: Any) -> None:
        """Handle messages up to the end, or with `stop_at_end=False` until `close`."""
        chosen = {"topic": "t", "stop_at_end": True, **QUICK, **options}
        if self.asynchronous:
            asyncio.run(self._on_a_loop(handler, chosen))
            return
        with (
            tms.connect(self.url, timeout_s=self.timeout_s) as bus,
            bus.consumer(**grouped(**chosen)) as consumer,
        ):
            self.close = consumer.close
            consumer.handle(self._within(bus, consumer, handler, chosen))

    async def _on_a_loop(self, handler: Handler, chosen: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        async with (
            tms.aio.connect(self.url, timeout_s=self.timeout_s) as bus,
            bus.consumer(**grouped(**chosen)) as consumer,
        ):
            self.close = lambda: asyncio.run_coroutine_threadsafe(consumer.close(), loop).result()
            done = self._within(bus._sync, consumer, handler, chosen)

            async def handle(message: tms.Message) -> None:
                await asyncio.to_thread(done, message)

            await consumer.handle(handle)

    def _within(self, bus: Bus, consumer: Any, handler: Handler, chosen: dict[str, Any]) -> Handler:
        """Wrap a handler: with exactly-once it runs in a transaction with its output."""
        if chosen.get("delivery") != "exactly-once":
            return handler

        def handle(message: tms.Message) -> None:
            with bus.transaction() as tx:
                tx.send("made", message.value)
                tx.ack(consumer)
                handler(message)

        return handle


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest, service: Restarted) -> Kind:
    with tms.connect(service.url) as bus:
        bus.create_topic("made")
    return Kind(service.url, request.param)


class Poisoned:
    """A handler that fails with some messages, a number of times or always."""

    def __init__(self, poison: bytes = POISON, times: int = 1_000) -> None:
        self.poison, self.left = poison, times
        self.seen: list[bytes] = []

    def __call__(self, message: tms.Message) -> None:
        self.seen.append(message.value or b"")
        if message.value == self.poison and self.left > 0:
            self.left -= 1
            raise ValueError("not an image")


def letters(url: str, **options: Any) -> list[tms.DeadLetter]:
    with tms.connect(url) as bus:
        return list(bus.list_dead_letters("t", group="g", **options))


def rest(url: str) -> list[bytes | None]:
    with (
        tms.connect(url) as bus,
        bus.consumer("t", group="g", partitions="all", stop_at_end=True) as consumer,
    ):
        return [message.value for message in consumer]


@pytest.mark.parametrize("delivery", MODES)
def test_what_fails_too_often_is_a_dead_letter_and_the_group_goes_on(
    delivery: str, kind: Kind
) -> None:
    handler = Poisoned()
    kind.handle(handler, delivery=delivery, dead_letter="", deliveries_max=3)
    assert handler.seen == [*GOOD[:7], *[POISON] * 3, *GOOD[7:]]
    assert rest(kind.url) == []
    [letter] = letters(kind.url)
    assert (letter.message.topic, letter.message.value) == ("t-g-dead", POISON)
    assert letter.message.key == POISON
    assert (letter.cause, letter.deliveries) == ("ValueError: not an image", 3)
    assert (letter.partition, letter.offset) == (0, 7)
    with tms.connect(kind.url) as bus:
        made = [one.value for one in bus.consumer("made", stop_at_end=True)]
    assert made == (GOOD if delivery == "exactly-once" else [])


@pytest.mark.parametrize("delivery", MODES)
def test_a_dead_letter_that_was_the_last_message_is_behind_the_group(
    delivery: str, kind: Kind
) -> None:
    kind.handle(Poisoned(b"19"), delivery=delivery, dead_letter="", deliveries_max=1)
    assert rest(kind.url) == []
    assert [letter.message.value for letter in letters(kind.url)] == [b"19"]


@pytest.mark.parametrize("delivery", MODES)
def test_what_fails_less_often_is_handled_in_its_place(delivery: str, kind: Kind) -> None:
    handler = Poisoned(times=2)
    kind.handle(handler, delivery=delivery, dead_letter="", deliveries_max=3)
    assert handler.seen == [*GOOD[:7], *[POISON] * 3, *GOOD[7:]]
    assert rest(kind.url) == []
    assert letters(kind.url) == []


@pytest.mark.parametrize("delivery", MODES)
def test_without_dead_letters_the_error_ends_it_before_the_message(
    delivery: str, kind: Kind
) -> None:
    handler = Poisoned()
    with pytest.raises(ValueError, match="not an image"):
        kind.handle(handler, delivery=delivery, deliveries_max=2)
    assert handler.seen == [*GOOD[:7], POISON, POISON]
    assert rest(kind.url)[0] == POISON
    kind.handle(again := Poisoned(times=0), delivery=delivery)  # after a correction
    assert again.seen == [POISON, *GOOD[7:]]


def test_a_dead_letter_keeps_headers_and_goes_to_the_topic_that_was_chosen(kind: Kind) -> None:
    with tms.connect(kind.url) as bus:
        bus.create_topic("bad", partitions=3)
        bus.publish("t", None, key=b"gone", headers={"a": b"1"})

    def handle(message: tms.Message) -> None:
        if message.value is None:
            raise KeyError("ä" * 5_000)

    kind.handle(handle, dead_letter="bad", deliveries_max=1)
    [letter] = letters(kind.url, dead_letter="bad")
    assert (letter.message.value, letter.message.key) == (None, b"gone")
    assert letter.message.headers["a"] == b"1"
    assert letter.cause.startswith("KeyError")
    assert letters(kind.url) == []


def handled_after_five(error: TMSError, kind: Kind, **options: Any) -> None:
    """Handle with a handler that raises an error five times, and look for dead letters: there is
    none though two deliveries are the most."""
    errors = [error] * 5

    def handle(message: tms.Message) -> None:
        if message.value == POISON and errors:
            raise errors.pop()

    kind.handle(handle, dead_letter="", deliveries_max=2, **options)
    assert errors == []
    assert letters(kind.url) == []


def test_errors_of_a_service_that_is_away_do_not_count(kind: Kind) -> None:
    handled_after_five(Unavailable("away"), kind)


def test_conflicts_of_transactions_do_not_count(kind: Kind) -> None:
    error = TransactionConflict("another one changed it")
    handled_after_five(error, kind, delivery="exactly-once")


@pytest.mark.parametrize("error", [TimedOut("no answer"), Conflict("moved"), Unavailable("away")])
def test_a_message_whose_commit_was_done_does_not_come_again(
    error: TMSError, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = Transaction._commit, list[TMSError]()

    def committed(self: Transaction) -> object:
        done = commit(self)
        if POISON in seen and not lost:  # its answer
            lost.append(error)
            raise error
        return done

    seen: list[bytes | None] = []
    monkeypatch.setattr(Transaction, "_commit", committed)
    kind.handle(
        lambda message: seen.append(message.value),
        delivery="exactly-once",
        dead_letter="",
        deliveries_max=1,
    )
    assert lost and seen == [b"%d" % n for n in range(20)]
    assert letters(kind.url) == []
    with tms.connect(kind.url) as bus:
        assert [one.value for one in bus.consumer("made", stop_at_end=True)] == seen


@pytest.mark.parametrize("error", [Fenced("late"), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_not_the_messages_fault_ends_it(error: BaseException, kind: Kind) -> None:
    def handle(message: tms.Message) -> None:
        if message.value == POISON:
            raise error

    with pytest.raises(type(error)):
        kind.handle(handle, dead_letter="", delivery="exactly-once", deliveries_max=1)
    assert rest(kind.url)[0] == POISON
    assert letters(kind.url) == []


# --- the service is away, others come, it is closed ---------------------------------------------


@pytest.mark.parametrize("delivery", MODES[:2])
def test_a_dead_letter_survives_an_outage_once(
    delivery: str, kind: Kind, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    kind.timeout_s = 1.0
    handler, stopped = Poisoned(), threading.Event()

    def handle(message: tms.Message) -> None:
        if message.value == POISON and not stopped.is_set():
            service.stop()
            stopped.set()
        handler(message)

    chosen = {"deliveries_max": 1, "delivery": delivery, "stop_at_end": False}
    working = in_thread(lambda: kind.handle(handle, dead_letter="", **chosen))
    until(lambda: away(caplog))
    service.start()
    until(lambda: len(handler.seen) == 20 and not rest(kind.url))
    kind.close()
    working.result(PATIENCE_S)
    assert handler.seen == [b"%d" % n for n in range(20)]
    assert [letter.message.value for letter in letters(kind.url)] == [POISON]
    assert rest(kind.url) == []


def test_closed_while_it_acknowledges_it_ends_and_the_message_comes_again(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = KnownPositions.move

    def closing(self: KnownPositions, changes: list[PositionChange]) -> Callable[[], None]:
        attempt = move(self, changes)

        def close_first() -> None:
            kind.close()
            attempt()

        return close_first

    handled: list[bytes | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(KnownPositions, "move", closing)
        kind.handle(lambda message: handled.append(message.value), stop_at_end=False)
    assert handled == [b"0"]
    assert rest(kind.url)[0] == b"0"


def test_closed_during_an_outage_it_ends_before_the_message(
    kind: Kind, service: Restarted, caplog: pytest.LogCaptureFixture
) -> None:
    kind.timeout_s = 1.0

    def handle(message: tms.Message) -> None:
        if message.value == POISON:
            service.stop()
            raise ValueError

    chosen = {"deliveries_max": 1, "stop_at_end": False}
    working = in_thread(lambda: kind.handle(handle, dead_letter="", **chosen))
    until(lambda: away(caplog))
    kind.close()
    working.result(PATIENCE_S)
    service.start()
    assert rest(kind.url)[0] == POISON


@pytest.mark.parametrize("delivery", MODES[:2])
def test_while_it_waits_others_join_and_nothing_is_lost(delivery: str, kind: Kind) -> None:
    """Its partitions are revoked during the pause: the next owner gets the message again."""
    with tms.connect(kind.url) as bus:
        bus.create_topic("wide", partitions=2)
        for number in range(20):
            bus.publish("wide", b"%d" % number, partition=number % 2)
    failing, given = threading.Event(), threading.Event()

    def handle(message: tms.Message) -> None:
        if message.value in (b"0", b"1"):
            failing.set()
            raise ValueError

    first = in_thread(
        lambda: kind.handle(handle, topic="wide", delivery=delivery, dead_letter="", **SLOW)
    )
    assert failing.wait(PATIENCE_S)
    second, seen = Kind(kind.url, kind.asynchronous), []

    def take(message: tms.Message) -> None:
        seen.append(message.value)

    other = in_thread(
        lambda: second.handle(
            take,
            topic="wide",
            delivery=delivery,
            stop_at_end=False,
            on_assigned=lambda partitions: given.set(),
        )
    )
    assert given.wait(PATIENCE_S)  # one of the two partitions
    kind.close()
    first.result(PATIENCE_S)
    until(lambda: {b"18", b"19"} <= set(seen))
    second.close()
    other.result(PATIENCE_S)
    for parity in range(2):
        assert [v for v in seen if v and int(v) % 2 == parity] == [
            b"%d" % n for n in range(parity, 20, 2)
        ]


@pytest.mark.parametrize("late_s", [0, 0.5])
def test_closed_in_the_pause_it_ends_before_the_message(
    late_s: float, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the iteration goes on before the close commits."""
    failed, close = threading.Event(), Member.close

    def close_late(member: Member) -> None:
        threading.Event().wait(late_s)
        close(member)

    monkeypatch.setattr(Member, "close", close_late)

    def handle(message: tms.Message) -> None:
        if message.value == POISON:
            failed.set()
            raise ValueError

    working = in_thread(
        lambda: kind.handle(handle, dead_letter="", delivery="at-least-once", **SLOW)
    )
    assert failed.wait(PATIENCE_S)
    kind.close()
    working.result(PATIENCE_S)
    assert rest(kind.url)[0] == POISON


@pytest.mark.parametrize("delivery", MODES)
def test_a_group_that_was_moved_by_hand_gets_no_dead_letter_twice(
    delivery: str, kind: Kind
) -> None:
    moved, seen = threading.Event(), []

    def handle(message: tms.Message) -> None:
        seen.append(message.value)
        if message.value == POISON and not moved.is_set():
            with tms.connect(kind.url) as bus:
                end = bus.offsets("t", "latest")[0]
                bus.set_positions("t", {0: f"offset:{end - 1}"}, group="g")
            moved.set()
            raise ValueError

    if delivery == "at-least-once":
        kind.handle(handle, dead_letter="", delivery=delivery, deliveries_max=1)
        assert seen[-1] == b"19"
    else:
        with pytest.raises(Conflict):
            kind.handle(handle, dead_letter="", delivery=delivery, deliveries_max=1)
    assert letters(kind.url) == []


CRASHING = """
import os, sys, tms
from tms.client.transaction import Transaction
commit, when = Transaction._send, sys.argv[2]
def dying(self, request):
    if request.blocks:
        if when == "before": os._exit(9)
        commit(self, request); os._exit(9)
    return commit(self, request)
Transaction._send = dying
def handle(message):
    if message.value == b"7": raise ValueError("poison")
with tms.connect(sys.argv[1]) as bus:
    group = tms.Group("g", delivery="at-least-once", dead_letter="", deliveries_max=1, session_s=1)
    bus.consumer("t", group=group, stop_at_end=True).handle(handle)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_the_commit_the_message_is_before_the_group_or_a_dead_letter(
    when: str, service: Restarted
) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASHING, service.url, when], timeout=60)
    assert ended.returncode == 9
    is_dead = when == "after"
    if is_dead:
        assert [one.message.value for one in letters(service.url)] == [POISON]
    assert (POISON in rest(service.url)) is not is_dead
    Kind(service.url, False).handle(handler := Poisoned(), dead_letter="", deliveries_max=1)
    assert [one.message.value for one in letters(service.url)] == [POISON]
    assert handler.seen[-1] == b"19"


# --- refusals, and lists --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group": "", "dead_letter": ""}, "members of a group"),
        ({"partitions": "all", "dead_letter": "x"}, "members of a group"),
        ({"delivery": "at-most-once", "dead_letter": "x"}, "at-most-once"),
        ({"dead_letter": "t"}, "its own dead letters"),
        ({"dead_letter": "-"}, "topic"),
        ({"dead_letter": 3}, "name of a topic"),
        ({"dead_letter": "x", "deliveries_max": 0}, "for ever"),
        ({"deliveries_max": 256}, "deliveries_max"),
        ({"backoff_first_s": -1}, "backoff_first_s"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_consumer_is_made(
    options: dict[str, Any], words: str, kind: Kind
) -> None:
    with pytest.raises(Invalid, match=words):
        kind.handle(print, **options)


def test_only_members_and_functions_handle(kind: Kind) -> None:
    with pytest.raises(Invalid, match="Only a member"):
        kind.handle(print, group="")
    with pytest.raises(Invalid, match="A handler is a function"), tms.connect(kind.url) as bus:
        bus.consumer("t", group="g").handle("print")  # type: ignore[arg-type]


def test_dead_letters_of_nobody_are_an_error(service: Restarted) -> None:
    with pytest.raises(QueueNotFound):
        letters(service.url)


def test_the_command_line_lists_them(service: Restarted, run: Run) -> None:
    Kind(service.url, False).handle(Poisoned(), dead_letter="", deliveries_max=1)
    place = ("--url", service.url)
    ended = run("group", "dead", "t", "g", "-f", "%v %c %d\n", *place, TMS_DATA="")
    assert ended.out == b"7 ValueError: not an image 1\n"
    [line] = run("group", "dead", "t", "g", "--json", *place, TMS_DATA="").out.splitlines()
    assert b'"cause":"ValueError: not an image"' in line.replace(b'": "', b'":"')
    assert run("group", "dead", "t", "nobody", *place, TMS_DATA="").code == 3
    ended = run("group", "dead", "t", "g", "--dead-letter", "other", *place, TMS_DATA="")
    assert "No dead letters in" in ended.err
