"""The lines of the logger `tms`: each event of docs/logging.md, with threads and with asyncio;
their number; and that they contain no secret and no message."""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.client.test_client_faults import APPENDED, TOPIC, forgetting, pretending, refused
from tests.client.test_client_leases import LEASE_S, Service, message
from tests.client.test_surviving import Restarted
from tests.clocks import ManualClock
from tests.gate_kit import in_thread
from tests.grouping import grouped
from tests.http_kit import serving
from tests.proxy import Fault, Proxy
from tests.waiting import PATIENCE_S, until
from tms.client.http.credentials import read_token, token_of
from tms.errors import Overloaded, Unavailable
from tms.runtime.events import LINES, LINES_S, BoundedLog, Event
from tms.runtime.retrying import retrying
from tms.server.service import AccessLimits, NetworkOptions

PAGE = Path(__file__).resolve().parents[3] / "docs" / "logging.md"
Publish = Callable[[str, int], None]


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Logger, level and fields of each line of an event."""
    return [
        (one.name, one.levelname, one.msg.fields)
        for one in caplog.records
        if isinstance(one.msg, Event) and one.msg.name == name
    ]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log every event, and forget the limits that earlier tests reached."""
    caplog.set_level(logging.DEBUG, "tms")
    for module in (
        "tms.runtime.retrying._retries",
        "tms.client.http.addresses._log",
        "tms.client.delivery._log",
        "tms.client.member._log",
        "tms.client.leases._log",
    ):
        path, _, attribute = module.rpartition(".")
        monkeypatch.setattr(module, BoundedLog(path.removesuffix(f".{attribute}")))


# -- number of lines -----------------------------------------------------------------------------


def test_of_a_storm_there_are_few_lines_and_the_next_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log = BoundedLog("tms.test", clock.monotonic_s)
    for number in range(1_000):
        log.warning("storm", number=number)
    log.info("other", number=0)
    assert [fields["number"] for _, _, fields in told(caplog, "storm")] == list(range(LINES))
    assert len(told(caplog, "other")) == 1
    clock.pass_ms(round(LINES_S * 1_000))
    log.warning("storm", number=1_000)
    log.warning("storm", number=1_001)
    last, after = [fields for _, _, fields in told(caplog, "storm")][LINES:]
    assert last == {"number": 1_000, "left_out": 1_000 - LINES}
    assert after == {"number": 1_001}


def test_a_storm_of_retries_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3 * LINES):
        failures = [Unavailable("It is away.")]

        def attempt(_: float, failures: list[Unavailable] = failures) -> None:
            if failures:
                raise failures.pop()

        retrying(attempt, tms.runtime.clock.SystemClock(), 5, what="look")
    assert len(told(caplog, "request_retried")) == LINES


def output(*lines: str) -> str:
    """The output of a program on stderr."""
    script = "\n".join(("import logging, tms, tms.runtime.events", *lines))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_warnings_are_seen_until_the_program_says_where_events_go() -> None:
    log = "log = tms.runtime.events.EventLog('tms.x')"
    warn = "log.info('normal'); log.warning('happened', why='this')"
    assert output(log, warn) == "happened why='this'\n"
    assert output("logging.basicConfig()", log, warn) == "WARNING:tms.x:happened why='this'\n"
    silent = "logging.getLogger('tms').addHandler(logging.NullHandler())"
    assert output(silent, log, warn) == ""


# -- requests and connections --------------------------------------------------------------------


@contextlib.contextmanager
def from_threads(url: str, timeout_s: float = 10) -> Iterator[Publish]:
    with tms.connect(url, timeout_s=timeout_s) as bus:

        def publish(topic: str, count: int) -> None:
            for number in range(count):
                bus.publish(topic, b"%d" % number)

        yield publish


@contextlib.contextmanager
def from_a_producer(url: str, timeout_s: float = 10) -> Iterator[Publish]:
    with tms.connect(url, timeout_s=timeout_s) as bus, contextlib.ExitStack() as opened:
        producers: dict[str, tms.Producer] = {}

        def publish(topic: str, count: int) -> None:
            if topic not in producers:
                producers[topic] = opened.enter_context(bus.producer(topic))
            for number in range(count):
                producers[topic].send(b"%d" % number)
                producers[topic].flush()

        yield publish


def on_a_loop(
    make: Callable[[tms.aio.AsyncBus, str, int], Awaitable[None]], url: str, timeout_s: float
) -> Iterator[Publish]:
    with asyncio.Runner() as runner:

        async def opened() -> tms.aio.AsyncBus:
            return tms.aio.connect(url, timeout_s=timeout_s)

        bus = runner.run(opened())

        async def publish(topic: str, count: int) -> None:
            for _ in range(3):  # events from meanwhile come before
                await asyncio.sleep(0)
            await make(bus, topic, count)

        yield lambda topic, count: runner.run(publish(topic, count))
        runner.run(bus.close())


@contextlib.contextmanager
def from_tasks(url: str, timeout_s: float = 10) -> Iterator[Publish]:
    async def each(bus: tms.aio.AsyncBus, topic: str, count: int) -> None:
        for number in range(count):
            await bus.publish(topic, b"%d" % number)

    yield from on_a_loop(each, url, timeout_s)


@contextlib.contextmanager
def from_an_async_producer(url: str, timeout_s: float = 10) -> Iterator[Publish]:
    producers: dict[str, tms.aio.AsyncProducer] = {}

    async def each(bus: tms.aio.AsyncBus, topic: str, count: int) -> None:
        if topic not in producers:
            producers[topic] = bus.producer(topic)
        for number in range(count):
            await producers[topic].send(b"%d" % number)
            await producers[topic].flush()

    yield from on_a_loop(each, url, timeout_s)


ways = pytest.mark.parametrize(
    "way",
    [from_threads, from_a_producer, from_tasks, from_an_async_producer],
    ids=lambda way: way.__name__,
)


@ways
def test_a_request_that_is_retried_is_told_with_its_reason(
    way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return TOPIC
        seen.append(request)
        return refused(Overloaded("Too much.")) if len(seen) == 1 else APPENDED

    with pretending(answer) as url, way(url) as publish:
        publish("t", 1)
    assert len(seen) == 2
    [(logger, level, fields)] = told(caplog, "request_retried")
    assert (logger, level) == ("tms.runtime.retrying", "INFO")
    assert fields["request"] == "publish to t" and fields["attempt"] == 1
    assert fields["code"] == "overloaded" and fields["error"].startswith("Too much.")
    assert 0 <= fields["wait_s"] <= 2


def test_what_the_transport_repeats_is_named_by_its_operation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[bytes] = []

    def answer(request: bytes) -> bytes:
        seen.append(request)
        return refused(Overloaded("Too much.")) if len(seen) == 1 else TOPIC

    with pretending(answer) as url, tms.connect(url) as bus:
        bus.describe_topic("t")
    [(_, _, fields)] = told(caplog, "request_retried")
    assert fields["request"] == "topics.describe_topic"


@ways
def test_a_connection_that_is_lost_and_is_there_again_is_told_once_each(
    way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as served:
        served.create("t", durability="written")
        with Proxy(served.url) as proxy, way(proxy.url) as publish:
            publish("t", 1)
            assert told(caplog, "connection_lost") == []
            for fault in (Fault.LOSE_ANSWER, Fault.HALF_ANSWER):
                proxy.script(fault)
                publish("t", 1)
    # closing an open connection loses nothing
    lost, back = told(caplog, "connection_lost"), told(caplog, "connection_restored")
    assert [one[:2] for one in lost] == [("tms.client.http.addresses", "WARNING")] * 2
    assert [one[:2] for one in back] == [("tms.client.http.addresses", "WARNING")] * 2
    for _, _, fields in lost:
        assert fields["service"] == proxy.url and proxy.url in fields["error"]
    for _, _, fields in back:
        assert fields["service"] == proxy.url and fields["away_s"] >= 0


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_connection_that_a_consumer_loses_is_told(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_tasks(url: str) -> None:
        async with tms.aio.connect(url) as bus, bus.consumer("t", stop_at_end=True) as consumer:
            proxy.script(Fault.LOSE_ANSWER)
            assert [one.value async for one in consumer] == [b"0"]

    with serving() as served:
        served.create("t", durability="written")
        url = served.url
        with tms.connect(url) as bus:
            bus.publish("t", b"0")
        with Proxy(url, faulty_method=b"GET") as proxy:
            if kind == "tasks":
                asyncio.run(on_tasks(proxy.url))
            else:
                with tms.connect(proxy.url) as bus, bus.consumer("t", stop_at_end=True) as consumer:
                    proxy.script(Fault.LOSE_ANSWER)
                    assert [one.value for one in consumer] == [b"0"]
    assert len(told(caplog, "connection_lost")) == len(told(caplog, "connection_restored")) == 1
    [(_, _, retried)] = told(caplog, "request_retried")
    assert retried["request"] == "consumer of t"


@ways
def test_a_service_that_does_not_answer_in_time_is_not_lost_but_asked_again(
    way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as served:
        served.create("t", durability="written")
        url = served.url
        # Three attempts of a second.
        with Proxy(url) as proxy, way(proxy.url, timeout_s=3) as publish:
            publish("t", 1)
            proxy.script(Fault.SWALLOW_ANSWER)
            publish("t", 1)
    retries = told(caplog, "request_retried")
    assert retries  # more than one on a slow machine
    for _, _, retried in retries:
        assert retried["code"] == "timed-out" and "has not answered" in retried["error"]
    assert told(caplog, "connection_lost") == []


@ways
def test_a_service_that_is_not_there_is_told_and_that_it_comes(
    way: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Restarted(tmp_path / "data")
    with service, tms.connect(service.url) as bus:
        bus.create_topic("t")
    with way(service.url, timeout_s=30) as publish:
        with service:
            publish("t", 1)
        publishing = in_thread(lambda: publish("t", 1))
        until(lambda: len(told(caplog, "connection_lost")) == 1)
        with service:
            publishing.result(PATIENCE_S)
            until(lambda: len(told(caplog, "connection_restored")) == 1)
    [(_, _, lost)] = told(caplog, "connection_lost")
    assert lost["error"].startswith(f"Nothing listens at {service.url}")


def test_a_consumer_that_cannot_connect_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Restarted(tmp_path / "data")
    with service, tms.connect(service.url) as bus:
        bus.create_topic("t")
    with tms.connect(service.url) as bus:
        with service:
            consumer = bus.consumer("t", stop_at_end=True)
        reading = in_thread(lambda: list(consumer))
        until(lambda: len(told(caplog, "connection_lost")) == 1)
        with service:
            reading.result(PATIENCE_S)
    [(_, _, lost)] = told(caplog, "connection_lost")
    assert lost["error"].startswith(f"Nothing listens at {service.url}")


def test_what_a_program_gives_up_itself_is_no_connection_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave(url: str) -> None:
        async with tms.aio.connect(url) as bus:
            consumer = bus.consumer("t")
            waiting = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.sleep(0.1)
            await consumer.close()
            with contextlib.suppress(StopAsyncIteration, asyncio.CancelledError):
                await waiting

    with serving() as served:
        served.create("t", durability="written")
        url = served.url
        with tms.connect(url) as bus:
            consumer = bus.consumer("t")
            waiting = in_thread(lambda: list(consumer))
            until(lambda: served.service.metrics.long_polls + served.service.metrics.followers > 0)
            consumer.close()
            waiting.result(PATIENCE_S)
        asyncio.run(leave(url))
    assert told(caplog, "connection_lost") == []


# -- producers, members, leases ------------------------------------------------------------------


@ways
def test_a_producer_that_begins_anew_is_told(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pretending(forgetting([])) as url, way(url) as publish:
        publish("t", 2)
    [(logger, level, fields)] = told(caplog, "producer_renewed")
    assert (logger, level) == ("tms.client.delivery", "WARNING")
    assert fields == {"topic": "t", "partition": 0, "error": "0 is next."}


def consuming(kind: str, url: str, name: str, stop: list[Callable[[], object]]) -> None:
    """Read as a member until `stop[-1]` is called."""
    options = grouped(group="g", delivery="at-least-once", session_s=1)
    if kind == "threads":
        with tms.connect(url) as bus, bus.consumer(name, **options) as consumer:
            stop.append(consumer.close)
            for _ in consumer:
                pass
        return

    async def read() -> None:
        loop = asyncio.get_running_loop()
        async with tms.aio.connect(url) as bus, bus.consumer(name, **options) as consumer:
            stop.append(
                lambda: asyncio.run_coroutine_threadsafe(consumer.close(), loop).result(PATIENCE_S)
            )
            async for _ in consumer:
                pass

    asyncio.run(read())


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_partitions_that_come_and_go_are_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served:
        served.service.engine.start()
        served.create("t", partitions=4, durability="written")
        url = served.url
        first: list[Callable[[], object]] = []
        second: list[Callable[[], object]] = []
        one = in_thread(lambda: consuming(kind, url, "t", first))
        until(lambda: len(told(caplog, "partitions_assigned")) == 1)
        other = in_thread(lambda: consuming(kind, url, "t", second))
        until(lambda: len(told(caplog, "partitions_assigned")) == 2)
        for stop, reading in ((first, one), (second, other)):
            stop[-1]()
            reading.result(PATIENCE_S)
    [(logger, level, got), (_, _, handed)] = told(caplog, "partitions_assigned")[:2]
    assert (logger, level) == ("tms.client.member", "INFO")
    assert got["partitions"] == [0, 1, 2, 3] and (got["group"], got["topic"]) == ("g", "t")
    [(_, level, revoked)] = told(caplog, "partitions_revoked")[:1]
    assert level == "INFO" and revoked["partitions"] == handed["partitions"]
    assert revoked["member"] == got["member"] != handed["member"]
    assert told(caplog, "partitions_lost") == []


def test_a_member_that_is_fenced_is_told_and_which_partitions_it_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Members of `tms.aio` behave alike."""
    with serving() as served:
        served.create("t", durability="written")
        with tms.connect(served.url) as bus:
            bus.publish("t", b"0")
            late = bus.consumer("t", group=tms.Group("g", session_s=1, delivery="at-least-once"))
            reading = iter(late)
            next(reading)
            other = bus.consumer("t", group=tms.Group("g", session_s=60, delivery="at-least-once"))
            assert next(iter(other)).value == b"0"
            bus.publish("t", b"1")
            late._reader.member.look_now()
            late._reader.member.tend()
            [(logger, level, fenced)] = told(caplog, "member_fenced")
            assert (logger, level) == ("tms.client.member", "WARNING")
            assert fenced["partitions"] == [0] and fenced["error"]
            [(_, level, lost)] = told(caplog, "partitions_lost")
            assert level == "WARNING" and lost["partitions"] == [0]
            assert lost["member"] == fenced["member"] == late._reader.member.name
            other.close()
            late.close()


def test_leases_that_are_lost_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Leases of `tms.aio` behave alike."""
    service = Service()
    first, second, third, mine = (message(offset, 2) for offset in (3, 4, 5, 9))
    kept = service.leases.keep([first, second, third, mine])
    kept[2].settled = True  # a transaction in flight settles it
    service.fenced = {first.token, second.token, third.token}
    for _ in range(3):
        service.pass_s(LEASE_S / 2)
    [(logger, level, fields)] = told(caplog, "lease_lost")
    assert (logger, level) == ("tms.client.leases", "WARNING")
    place = {"partition": 0, "offset": 3, "deliveries": 2}
    assert fields == {"queue": "the queue g of t", "messages": 2, **place}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_dead_letter_of_a_worker_is_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: tms.Delivered) -> None:
        raise ValueError("no image")

    async def on_tasks(url: str) -> None:
        async with tms.aio.connect(url) as bus:
            queue = await bus.queue("t", group="w", deliveries_max=2, backoff_first_s=0)

            async def handle(message: tms.Delivered) -> None:
                fail(message)

            worker = queue.worker(handle)
            async with worker:
                await asyncio.to_thread(until, lambda: bool(told(caplog, "dead_letter")))

    with serving() as served:
        served.service.engine.queues.start()
        served.create("t", durability="written")
        url = served.url
        with tms.connect(url) as bus:
            bus.publish("t", b"bad")
            if kind == "tasks":
                asyncio.run(on_tasks(url))
            else:
                queue = bus.queue("t", group="w", deliveries_max=2, backoff_first_s=0)
                with queue.worker(fail):
                    until(lambda: bool(told(caplog, "dead_letter")))
    [(logger, level, fields)] = told(caplog, "dead_letter")
    assert (logger, level) == ("tms.client.worker", "WARNING")
    place = {"partition": 0, "offset": 0, "deliveries": 2, "to": "t-w-dead"}
    assert fields == {"worker": "worker of the queue w of t", **place}
    assert len(told(caplog, "handler_failed")) == 2


def test_a_dead_letter_of_a_group_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: tms.Message) -> None:
        raise ValueError("no image")

    with serving() as served:
        served.create("t", durability="written")
        with tms.connect(served.url) as bus:
            bus.publish("t", b"bad")
            group = tms.Group("g", deliveries_max=1, dead_letter="")
            bus.consumer("t", group=group, stop_at_end=True).handle(fail)
    [(logger, level, fields)] = told(caplog, "dead_letter")
    assert (logger, level) == ("tms.client.dead_letters", "WARNING")
    assert (fields["group"], fields["offset"], fields["to"]) == ("g", 0, "t-g-dead")


@pytest.mark.parametrize(("mode", "lines"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o644, 1)])
def test_a_token_file_that_others_can_read_is_told_of(
    mode: int,
    lines: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "a.token"
    file.write_text("tms_secret\n")
    file.chmod(mode)
    monkeypatch.setenv("TMS_TOKEN_FILE", str(file))
    assert token_of(None) == read_token(file) == "tms_secret"
    found = told(caplog, "token_file_open")
    assert len(found) == 2 * lines and "secret" not in str(found)
    for logger, level, fields in found:
        assert (logger, level) == ("tms.client.http.credentials", "WARNING")
        assert (fields["mode"], fields["mend"]) == (f"{mode:04o}", f"chmod 600 {file}")


def test_a_token_of_standard_input_is_in_no_file(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"tms_piped\n")
    os.close(writing)
    assert read_token(Path(f"/dev/fd/{reading}")) == "tms_piped"
    os.close(reading)
    assert not told(caplog, "token_file_open")


# -- secrets, and the documentation --------------------------------------------------------------


@ways
def test_no_secret_and_no_message_is_told(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(network=NetworkOptions(AccessLimits(audit=True))) as served:
        url = served.url
        records = served.service.engine.access
        token = records.create_token("ann").token
        records.add_grant("ann", "all", "*")
        with tms.connect(url, token=token) as bus:
            bus.create_topic("t", durability="written")
        with Proxy(url) as proxy, pytest.MonkeyPatch.context() as patched:
            patched.setenv("TMS_TOKEN", token)
            with way(proxy.url) as publish:
                proxy.script(Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.LOSE_REQUEST)
                publish("t", 3)
    assert told(caplog, "request_retried") and told(caplog, "connection_lost")
    lines = [one.getMessage() for one in caplog.records]
    assert not [one for one in lines if token in one or token.split("_")[-1] in one]


def test_every_event_of_the_client_is_documented_with_its_logger_and_level() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    documented = {(name, logger, level) for name, logger, level in rows}
    package = Path(tms.__file__).parent
    found = set()
    for path in [package / "runtime/retrying.py", *(package / "client").rglob("*.py")]:
        module = ".".join(("tms", *path.relative_to(package).with_suffix("").parts))
        for level, name in re.findall(r'_(?:log|retries)\.(\w+)\(\s*"(\w+)"', path.read_text()):
            found.add((name, module, level.replace("exception", "error").upper()))
    assert found == documented and len(found) > 12
