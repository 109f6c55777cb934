"""Views: the newest value of each key, or the sum of its events, kept current from the log."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tms
import tms.aio
from tests.contracts.buses import BOTH, bus_by
from tests.http_kit import Served, serving
from tests.proxy import Proxy
from tests.waiting import until
from tms import Bus, Message
from tms.engine.engine import Engine
from tms.errors import Conflict, OffsetOutOfRange, TMSError, TopicNotFound, ViewFailed, WrongLastId
from tms.runtime.clock import SystemClock
from tms.store.leveldb.store import LevelDBStore
from tms.store.memory import MemoryStore


@pytest.fixture(params=BOTH)
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    with bus_by(request.param, tmp_path / "data") as bus:
        bus.create_topic("settings", partitions=3, durability="written")
        yield bus


def put(bus: Bus, **values: str | None) -> None:
    for key, value in values.items():
        bus.publish("settings", None if value is None else value.encode(), key=key.encode())


def a_moment() -> None:
    began_s = time.time()
    until(lambda: time.time() > began_s + 0.01)


def added(before: int | None, message: Message) -> int:
    return (before or 0) + int(message.value or b"0")


def test_it_has_the_newest_value_of_each_key_and_follows_the_log(bus: Bus) -> None:
    put(bus, a="1", b="1")
    put(bus, a="2", c="1")
    put(bus, b=None)
    bus.publish("settings", b"of nobody")
    with bus.view("settings") as view:
        assert dict(view) == {b"a": b"2", b"c": b"1"}
        assert (len(view), b"b" in view, view.get(b"b")) == (2, False, None)
        put(bus, a="3", c=None, d="1")
        until(lambda: dict(view.items()) == {b"a": b"3", b"d": b"1"})
        assert sorted(view.values()) == [b"1", b"3"]
        id = bus.publish("settings", b"4", key=b"a")
        view.refresh()
        assert (view[b"a"], view.last_id(b"a"), view.last_id(b"c")) == (b"4", id, None)
    with pytest.raises(KeyError):
        view[b"zz"]


def test_what_was_committed_is_there_after_a_refresh(bus: Bus) -> None:
    with bus.view("settings") as view:
        for number in range(50):
            with bus.transaction() as tx:
                tx.send("settings", b"%d" % number, key=b"k%d" % (number % 7))
            view.refresh()
            assert view[b"k%d" % (number % 7)] == b"%d" % number


def test_it_comes_to_what_a_function_makes_of_events(bus: Bus) -> None:
    for amount in (5, -2, 10):
        bus.publish("settings", b"%d" % amount, key=b"account")
    with bus.view("settings", apply=added) as view:
        assert view[b"account"] == 13
        bus.publish("settings", b"-3", key=b"account")
        view.refresh()
        assert view[b"account"] == 10
    with bus.view("settings", apply=lambda before, _: None if before else b"on") as toggled:
        assert dict(toggled) == {}


def test_it_is_rebuilt_as_it_was_at_any_time(bus: Bus) -> None:
    put(bus, a="1", b="1")
    a_moment()
    then = datetime.now(UTC)
    a_moment()
    put(bus, a="2", b=None, c="1")
    past = bus.view("settings", at=then)
    assert dict(past) == {b"a": b"1", b"b": b"1"}
    put(bus, a="3")
    past.refresh()
    assert dict(past) == {b"a": b"1", b"b": b"1"}
    assert dict(bus.view("settings", at="earliest")) == {}
    ids = bus.publish_many("settings", [b"x", b"y", b"z"], [b"q"] * 3)
    assert bus.view("settings", at=ids[1])[b"q"] == b"x"


def test_it_goes_on_from_a_snapshot(bus: Bus) -> None:
    for amount in (5, -2):
        bus.publish("settings", b"%d" % amount, key=b"account")
    with bus.view("settings", apply=added) as view:
        snapshot = view.snapshot()
    bus.publish("settings", b"4", key=b"account")
    with bus.view("settings", apply=added, snapshot=snapshot) as view:
        assert view[b"account"] == 7
    assert snapshot.entries[b"account"].value == 3


def test_a_snapshot_is_refused_where_the_topic_does_not_go_on_from_it(bus: Bus) -> None:
    put(bus, a="1")
    with bus.view("settings") as view:
        snapshot = view.snapshot()
    put(bus, a="2", b="2", c="2", d="2", e="2")
    bus.truncate_topic("settings")
    with pytest.raises(OffsetOutOfRange):
        bus.view("settings", snapshot=snapshot)
    bus.delete_topic("settings")
    bus.create_topic("settings", partitions=3, durability="written")
    with pytest.raises(Conflict, match="anew"):
        bus.view("settings", snapshot=snapshot)


def test_changes_are_told(bus: Bus) -> None:
    told: list[tuple[bytes, bytes | None]] = []
    put(bus, a="1")
    with bus.view("settings", on_change=lambda key, value: told.append((key, value))):
        assert told == [(b"a", b"1")]
        put(bus, a=None)
        until(lambda: told[1:] == [(b"a", None)])


def test_deciding_on_what_it_has_and_expecting_that_loses_no_update(bus: Bus) -> None:
    def work() -> None:
        with bus.view("settings", apply=added) as view:
            done = 0
            while done < 15:
                before, expect = view.current(b"account")
                if (before or 0) >= 60:
                    view.refresh()
                try:
                    bus.publish("settings", b"1", key=b"account", expect=expect)
                except WrongLastId:
                    view.refresh()
                else:
                    done += 1
                    seen.append(before or 0)

    seen: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(60)), "each decision rested on all that were before it"
    with bus.view("settings", apply=added) as view:
        assert view[b"account"] == 60


def has_failed(view: tms.View, kind: type[Exception]) -> bool:
    """True if the use of a view says that it ended with an error of this kind."""
    try:
        return len(view) > 99
    except ViewFailed as error:
        return isinstance(error.__cause__, kind)


def test_a_function_that_fails_ends_the_view_and_its_use_says_so(bus: Bus) -> None:
    put(bus, a="not a number")
    with pytest.raises(ValueError, match="invalid literal"):
        bus.view("settings", apply=added)
    bus.truncate_topic("settings")
    with bus.view("settings", apply=added) as view:
        put(bus, a="neither is this")
        until(lambda: has_failed(view, ValueError))


def test_whatever_ends_a_view_its_use_says_so(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    with bus.view("settings") as view:

        def broken(left_s: float) -> None:
            raise KeyError("ours")

        monkeypatch.setattr(view, "_next", broken)
        put(bus, a="1")  # wakes it
        until(lambda: has_failed(view, KeyError))


def test_a_topic_that_is_deleted_is_told(bus: Bus) -> None:
    view = bus.view("settings")
    bus.delete_topic("settings")

    def gone() -> bool:
        try:
            return len(view) > 99
        except TopicNotFound:
            return True

    until(gone)
    with pytest.raises(TopicNotFound):
        bus.view("settings")


def test_added_partitions_are_read_too(bus: Bus) -> None:
    put(bus, **{f"k{number}": "old" for number in range(20)})
    with bus.view("settings") as view:
        bus.update_topic("settings", partitions=8)
        put(bus, **{f"k{number}": "new" for number in range(20)})
        view.refresh()
        assert set(view.values()) == {b"new"}
    with bus.view("settings") as again:
        assert set(again.values()) == {b"new"}
    put(bus, **{f"k{number}": None for number in range(20)})
    with bus.view("settings") as empty:
        assert dict(empty) == {}


def test_it_goes_on_when_a_service_that_was_away_is_back(tmp_path: Path) -> None:
    def service() -> AbstractContextManager[Served]:
        return serving(LevelDBStore(tmp_path / "data", create=True))

    with ExitStack() as opened, ExitStack() as first:
        served = first.enter_context(service())
        proxy = opened.enter_context(Proxy(served.url, b"NONE"))
        bus = opened.enter_context(tms.connect(proxy.url, timeout_s=0.5))
        bus.create_topic("settings", durability="written")
        put(bus, a="1")
        view = opened.enter_context(bus.view("settings"))
        first.close()
        proxy.end_connections()
        with pytest.raises(TMSError):
            view.refresh()
        assert dict(view) == {b"a": b"1"}, "what was read stays readable"
        again = first.enter_context(service())
        with tms.connect(again.url) as other:
            put(other, a="2")
        proxy.lead_to(again.url)
        until(lambda: view[b"a"] == b"2")
        opened.close()


@pytest.mark.usefixtures("event_loop")
def test_an_asyncio_bus_has_the_same_views(tmp_path: Path) -> None:
    async def run() -> None:
        async with tms.aio.open(tmp_path / "aio") as bus:
            await bus.create_topic("settings", durability="written")
            await bus.publish("settings", b"1", key=b"a")
            view = await bus.view("settings")
            assert dict(view) == {b"a": b"1"}
            await bus.publish("settings", b"2", key=b"a")
            await asyncio.to_thread(view.refresh)
            assert view[b"a"] == b"2"

    asyncio.run(run())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.binary(max_size=3)), max_size=60))
def test_it_is_what_a_dictionary_would_be(changes: list[tuple[str, bytes | None]]) -> None:
    with Bus(Engine(MemoryStore(), SystemClock())) as bus:
        bus.create_topic("settings", partitions=2, durability="written")
        expected: dict[bytes, bytes] = {}
        with bus.view("settings") as view:
            for key, value in changes:
                bus.publish("settings", value, key=key.encode())
                if value is None:
                    expected.pop(key.encode(), None)
                else:
                    expected[key.encode()] = value
            view.refresh()
            assert dict(view) == expected
        with bus.view("settings") as again:
            assert dict(again) == expected


def test_the_values_of_json_events(bus: Bus) -> None:
    def carry(before: dict[str, int] | None, message: Message) -> dict[str, int]:
        return (before or {}) | json.loads(message.value or b"{}")

    bus.publish("settings", b'{"x": 1}', key=b"k")
    bus.publish("settings", b'{"y": 2}', key=b"k")
    with bus.view("settings", apply=carry) as view:
        assert view[b"k"] == {"x": 1, "y": 2}
