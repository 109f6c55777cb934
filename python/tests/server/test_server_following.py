"""Following a topic over HTTP: its parts, their form, and its end."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import tms
from tests.contracts.bus_contract import in_turn_of
from tests.http_kit import Served, request, serving
from tests.waiting import PATIENCE_S, until
from tms import block
from tms.api import bodies, routes
from tms.api.following import MARK, MARK_BYTES_MAX, FollowedParts, Stand, mark
from tms.errors import Malformed
from tms.model.message import Fetched, NewBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Commit
from tms.server.http.watchdog import ConnectionLimits

_NAMES = str.maketrans("[]/.", "____")
LINES = {"Accept": routes.NDJSON}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def bus(served: Served) -> Iterator[tms.Bus]:
    with tms.connect(served.url) as connected:
        yield connected


@pytest.fixture
def topic(bus: tms.Bus, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(_NAMES)[:100]
    bus.create_topic(name, partitions=2)
    return name


def path_of(topic: str) -> str:
    return f"/v2/namespaces/default/topics/{topic}/messages"


class Following:
    """The chunks that a connection that follows receives."""

    def __init__(self, served: Served, topic: str, query: str = "", **headers: str) -> None:
        self.client = served.connect()
        headers = headers or LINES
        target = f"{path_of(topic)}?follow=true{query}"
        self.client.send(request("GET", target, **headers))
        self.head = self.client._until(b"\r\n\r\n").decode()
        self._chunks = self.client._chunks()

    def chunk(self) -> bytes:
        return next(self._chunks)

    def part(self) -> Any:
        return json.loads(self.chunk())

    def values(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += [message["value"] for message in self.part()["messages"]]
        return found

    def rest(self) -> list[bytes]:
        return list(self._chunks)


def test_what_is_there_comes_first_and_then_what_is_appended(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    bus.publish(topic, b"before", partition=0)
    following = Following(served, topic)
    assert "transfer-encoding: chunked" in following.head
    assert following.values(1) == ["before"]
    for number in range(50):
        bus.publish(topic, b"%d" % number, partition=number % 2)
    assert sorted(following.values(50), key=int) == [str(number) for number in range(50)]


@pytest.mark.parametrize("accept", [routes.NDJSON, routes.BLOCKS])
def test_partitions_are_followed_in_turn(
    accept: str, served: Served, bus: tms.Bus, topic: str
) -> None:
    for n in range(24):
        bus.publish(topic, b"x", partition=n // 12)
    following = Following(served, topic, "&bytes_max=1", Accept=accept)
    order: list[int] = []
    while len(order) < 24:
        if accept == routes.NDJSON:
            order += [message["partition"] for message in following.part()["messages"]]
        else:
            order.append(following.chunk()[7])
    assert in_turn_of(order)


def test_latest_is_the_end_at_the_first_part(served: Served, bus: tms.Bus, topic: str) -> None:
    bus.publish(topic, b"large" * 100, partition=0)
    query = "&start=0:earliest,1:latest&bytes_max=1"  # no room for more than one partition
    following = Following(served, topic, query)
    assert "latest" not in following.part()["next"]
    bus.publish(topic, b"first", partition=1)
    assert following.values(1) == ["first"]


def test_it_goes_on_from_where_a_part_has_ended(served: Served, bus: tms.Bus, topic: str) -> None:
    for number in range(4):
        bus.publish(topic, b"%d" % number, partition=0)
    following = Following(served, topic, "&limit=2")
    first = following.part()
    assert [message["value"] for message in first["messages"]] == ["0", "1"]
    following.client.socket.close()
    again = Following(served, topic, f"&start={first['next']}")
    assert again.values(2) == ["2", "3"]


@pytest.mark.parametrize("media", [routes.NDJSON, routes.EVENTS, routes.ARROW_STREAM])
def test_it_says_now_and_again_that_nothing_came(served: Served, topic: str, media: str) -> None:
    following = Following(served, topic, "&wait_s=0.2", Accept=media)
    if media != routes.NDJSON:
        following.chunk()  # the parts before
    started = time.monotonic()
    for _ in range(3):
        assert following.chunk()
    assert 0.35 <= time.monotonic() - started < 5


def test_a_wait_that_is_too_short_does_not_make_it_chatter(served: Served, topic: str) -> None:
    following = Following(served, topic, "&wait_s=0.001")
    started = time.monotonic()
    for _ in range(4):
        following.part()
    assert time.monotonic() - started >= 0.25


def test_events_have_the_place_to_go_on_as_their_id(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    bus.publish(topic, b"one", partition=0)
    following = Following(served, topic, Accept=routes.EVENTS)
    assert following.chunk() == b"retry: 1000\n\n"
    id, data, *rest = following.chunk().decode().split("\n")
    assert rest == ["", ""]
    part = json.loads(data.removeprefix("data: "))
    assert [message["value"] for message in part["messages"]] == ["one"]
    place = id.removeprefix("id: ")
    assert place == part["next"]
    bus.publish(topic, b"two", partition=0)
    again = Following(served, topic, Accept=routes.EVENTS, Last_Event_ID=place)
    again.chunk()
    assert '"two"' in (found := again.chunk().decode())
    assert '"one"' not in found


def test_arrow_is_one_stream_of_batches(served: Served, bus: tms.Bus, topic: str) -> None:
    bus.publish(topic, b"one", key=b"k", partition=0)
    following = Following(served, topic, "&wait_s=0.1", Accept=routes.ARROW_STREAM)
    received = following.chunk()
    bus.publish(topic, b"two", partition=1)
    while received.count(b"two") == 0:
        received += following.chunk()
    batches = list(pa.ipc.open_stream(received))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"one", b"two"]
    assert [row["partition"] for row in rows] == [0, 1]


@pytest.mark.parametrize("media", [routes.JSON, "text/html"])
def test_a_form_that_has_no_end_is_needed(served: Served, topic: str, media: str) -> None:
    with served.connect() as client:
        answer = client.request("GET", f"{path_of(topic)}?follow=true", Accept=media)
    assert (answer.status, answer.problem) == (406, "not-acceptable")


@pytest.mark.parametrize("media", [routes.NDJSON, routes.EVENTS])
def test_a_fetch_that_ends_has_no_such_form(served: Served, topic: str, media: str) -> None:
    with served.connect() as client:
        assert client.request("GET", path_of(topic), Accept=media).status == 406


def test_what_is_wrong_at_first_is_an_answer_like_others(served: Served, topic: str) -> None:
    with served.connect() as client:
        for query, problem in (
            ("start=9:latest", "partition-not-found"),
            ("follow=perhaps", "invalid"),
            ("bytes_max=0", "invalid"),
        ):
            target = f"{path_of(topic)}?{query}"
            target += "" if "follow" in query else "&follow=true"
            assert client.request("GET", target).problem == problem
        gone = client.request("GET", f"{path_of('none')}?follow=true")
        assert gone.problem == "topic-not-found"


def test_head_is_answered_without_parts(served: Served, topic: str) -> None:
    with served.connect() as client:
        answer = client.request("HEAD", f"{path_of(topic)}?follow=true")
        assert (answer.status, answer.body) == (200, b"")
        assert client.request("GET", path_of(topic)).status == 200


# -- visibility ----------------------------------------------------------------------------------


def write_open(served: Served, topic: str) -> int:
    """Publish a message in an open transaction; returns the transaction's id."""
    transactions = served.service.engine.transactions
    id = transactions.begin().transaction_id
    made = [NewBlock(0, block.encode([b"in"], [None], None))]
    transactions.submit(TopicName("default", topic), made, id).result(PATIENCE_S)
    return id


def test_an_open_transaction_is_waited_for(served: Served, bus: tms.Bus, topic: str) -> None:
    following = Following(served, topic, "&wait_s=0.1")
    id = write_open(served, topic)
    bus.publish(topic, b"behind", partition=0)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert following.part()["messages"] == []
    served.service.engine.transactions.commit(Commit(id))
    assert following.values(2) == ["in", "behind"]


def test_one_that_is_taken_back_is_never_seen(served: Served, bus: tms.Bus, topic: str) -> None:
    following = Following(served, topic)
    id = write_open(served, topic)
    bus.publish(topic, b"behind", partition=0)
    served.service.engine.transactions.abort(id)
    assert following.values(1) == ["behind"]


def test_an_uncommitted_reader_sees_everything(served: Served, topic: str) -> None:
    following = Following(served, topic, "&isolation=uncommitted")
    id = write_open(served, topic)
    assert following.values(1) == ["in"]
    served.service.engine.transactions.abort(id)


def test_a_filter_holds_for_what_is_appended(served: Served, bus: tms.Bus, topic: str) -> None:
    following = Following(served, topic, "&where=key%20%3D%20a")
    for number in range(20):
        bus.publish(topic, b"%d" % number, key=b"ab"[number % 2 :][:1], partition=0)
    assert following.values(10) == [str(number) for number in range(0, 20, 2)]


# -- ends ----------------------------------------------------------------------------------------


def problem_of(chunks: list[bytes]) -> str:
    code: str = json.loads(chunks[-1])["problem"]["type"]
    return code.rpartition(":")[2]


def test_a_topic_that_is_deleted_ends_it_with_the_reason(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    following = Following(served, topic)
    following.part()
    bus.delete_topic(topic)
    assert problem_of(following.rest()) == "topic-not-found"


def test_one_that_is_made_anew_is_not_taken_for_the_old_one(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    bus.publish(topic, b"old", partition=0)
    following = Following(served, topic)
    following.values(1)
    bus.delete_topic(topic)
    bus.create_topic(topic, partitions=2)
    bus.publish(topic, b"new", partition=0)
    values = []
    for chunk in following.rest():
        part = json.loads(chunk)
        if "problem" in part:
            break
        values += [message["value"] for message in part["messages"]]
    assert values in ([], ["new"])


def test_one_that_is_truncated_goes_on_with_what_is_left(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    following = Following(served, topic)
    for number in range(10):
        bus.publish(topic, b"%d" % number, partition=0)
    following.values(10)
    bus.truncate_topic(topic)
    bus.publish(topic, b"after", partition=0)
    assert following.values(1) == ["after"]


def test_a_follower_that_leaves_costs_nothing_more(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    before = served.service.metrics.followers
    following = Following(served, topic)
    following.part()
    assert served.service.metrics.followers == before + 1
    following.client.socket.close()
    until(lambda: served.service.metrics.followers == before)


def test_its_time_is_no_latency_and_what_it_is_sent_is_counted() -> None:
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("a", partitions=1)
        following = Following(served, "a")
        received = following.chunk()
        bus.publish("a", b"one")
        received += following.chunk()
        lines = scraped(served)
        assert "tms_http_followers 1.0" in lines
        assert "tms_http_followed_parts_total 2.0" in lines
        assert f"tms_http_followed_bytes_total {len(received)}.0" in lines
        bus.delete_topic("a")
        following.rest()
        metrics = served.service.metrics
        until(lambda: metrics.answers["fetch", routes.OK] == 1)
        assert metrics.seconds["fetch"].count == 0


def test_followers_that_wake_up_together_share_a_fetch(
    served: Served, bus: tms.Bus, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = [Following(served, topic) for _ in range(20)]
    others = [Following(served, topic, "&where=key%20%3D%20a") for _ in range(2)]
    for following in followers + others:
        following.part()
    fetches: list[object] = []
    fetch = served.service.engine.fetch_cached

    def counted(*given: Any) -> Any:
        fetches.append(given)
        return fetch(*given)

    monkeypatch.setattr(served.service.engine, "fetch_cached", counted)
    bus.publish_many(topic, [b"other", b"all"], [b"b", b"b"], partition=0)
    bus.publish(topic, b"last", partition=0, key=b"a")
    for following in followers:
        assert following.values(3) == ["other", "all", "last"]
    for following in others:
        assert following.values(1) == ["last"]
    assert len(fetches) < len(followers)


def scraped(served: Served) -> list[str]:
    with served.connect() as client:
        return client.request("GET", "/metrics").body.decode().splitlines()


def test_a_service_that_drains_ends_it_at_a_place() -> None:
    with serving(drain_s=PATIENCE_S) as served:
        served.create("a")
        following = Following(served, "a", "&start=earliest")
        with served.connect() as client:
            body = b'{"messages": [{"value": "one"}]}'
            assert client.request("POST", path_of("a"), body).status == routes.OK
        found = following.values(1)
        started = time.monotonic()
        served.stop()
        rest = following.rest()
        assert time.monotonic() - started < PATIENCE_S / 2
    assert found == ["one"]
    assert not any(b"problem" in chunk for chunk in rest)


def test_who_does_not_read_holds_little_and_goes_on_from_the_store() -> None:
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("a", partitions=1)
        following = Following(served, "a", "&bytes_max=65536")
        following.part()
        count, value = 400, b"x" * 50_000
        for number in range(count):
            bus.publish("a", b"%d " % number + value)
        budget = served.service.fetching
        until(lambda: budget.bytes > 0)  # a part is stuck
        assert budget.bytes < 2 << 20
        values = following.values(count)
    assert [int(one.split()[0]) for one in values] == list(range(count))


def test_who_never_reads_is_cut_off() -> None:
    limits = ConnectionLimits(write_timeout_s=2.0)
    with (
        serving(connection_limits=limits) as served,
        tms.connect(served.url) as bus,
    ):
        bus.create_topic("a", partitions=1)
        Following(served, "a")
        for _ in range(400):
            bus.publish("a", b"x" * 50_000)
        until(lambda: served.service.metrics.followers == 0)
        assert served.service.fetching.bytes == 0


def test_many_follow_without_a_thread_each_and_all_get_a_message(
    served: Served, bus: tms.Bus, topic: str
) -> None:
    threads = threading.active_count()
    followers = [Following(served, topic) for _ in range(100)]
    for following in followers:
        following.part()
    assert threading.active_count() <= threads + served.service.limits.threads
    bus.publish(topic, b"all", partition=0)
    for following in followers:
        assert following.values(1) == ["all"]
        following.client.socket.close()


# -- bytes ---------------------------------------------------------------------------------------


def stand() -> Stand:
    return Stand.of(
        Fetched([], {0: Position.offset(3), 1: Position.latest()}, {0: 3, 1: 0}, {0: 3, 1: 0})
    )


def test_parts_are_whole_however_the_bytes_come() -> None:
    raw = mark(stand()) * 3
    for size in (1, 7, len(raw)):
        parts = FollowedParts()
        found = [
            part for at in range(0, len(raw), size) for part in parts.feed(raw[at : at + size])
        ]
        assert [part.body for part in found] == [b""] * 3
        assert found[0].lines == [b"0:offset:3,1:offset:0", b"0:3,1:0", b"0:3,1:0"]


@pytest.mark.parametrize(
    ("length", "partition"), [(MARK_BYTES_MAX + 1, MARK), (0xFFFFFFFF, 0)], ids=["mark", "block"]
)
def test_an_entry_that_claims_too_much_is_refused(length: int, partition: int) -> None:
    prefix = length.to_bytes(4, "big") + partition.to_bytes(4, "big")
    with pytest.raises(Malformed, match="claims"):
        list(FollowedParts().feed(prefix.ljust(bodies.PREFIX_BYTES, b"\0")))


def test_a_mark_has_three_lines() -> None:
    raw = bytearray(mark(stand()))
    with pytest.raises(Malformed, match="2 lines"):
        list(FollowedParts().feed(bytes(raw).replace(b"\n", b" ", 1)))


def test_a_client_asks_for_blocks(served: Served, topic: str) -> None:
    following = Following(served, topic, Accept=routes.BLOCKS)
    assert [part.body for part in FollowedParts().feed(following.chunk())] == [b""]
