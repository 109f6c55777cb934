"""Pages of messages: each message once, in order, forth and back; filters; files; what comes."""

import http.client
import json
import random
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances
from tests.http_kit import Served
from tests.pages_kit import PageReader, ReadPage
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.client.client import Bus
from tms.model.message import NewBlock
from tms.model.topic import TopicName

PLACE = re.compile(r"\d+/\d+")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        yield connected


def places(page: ReadPage) -> list[str]:
    return [text for text in page.links if PLACE.fullmatch(text)]


def walked(reader: PageReader, start: str, link: str) -> list[list[str]]:
    """The places on each page, from one on."""
    page = reader.get(start)
    pages = [places(page)]
    while link in page.links:
        page = reader.get(page.links[link])
        assert page.status == 200, page.text
        pages.append(places(page))
        assert len(pages) < 500
    return pages


def stored(bus: Bus, topic: str, **how: object) -> list[str]:
    """The places of all messages, in the order of their times."""
    with bus.consumer(topic, stop_at_end=True, **how) as consumer:  # type: ignore[call-overload]
        rows = [(one.timestamp_ms, one.partition, one.offset) for one in consumer]
    return [f"{partition}/{offset}" for _, partition, offset in sorted(rows)]


def fill(bus: Bus, topic: str, partitions: int, count: int) -> None:
    """Messages in partitions of very different sizes, some of them erased."""
    chosen = random.Random(topic)
    bus.create_topic(topic, partitions=partitions)
    for number in range(count):
        partition = min(chosen.randrange(partitions), chosen.randrange(partitions))
        headers = {"kind": b"even" if number % 2 == 0 else b"odd", "number": b"%d" % number}
        if number % 10 == 3:
            bus.publish(topic, b"erased", key=b"erased", partition=partition)
        bus.publish(topic, b"%d" % number, partition=partition, headers=headers)
    if count > 3:
        bus.erase(topic, key=b"erased")


@pytest.mark.parametrize(("partitions", "limit"), [(1, 7), (3, 1), (5, 7), (12, 20)])
def test_each_message_is_on_one_page_in_order(
    reader: PageReader, bus: Bus, partitions: int, limit: int
) -> None:
    topic = f"walked-{partitions}-{limit}"
    fill(bus, topic, partitions, 60)
    expected = stored(bus, topic)
    forth = walked(
        reader, f"/console/messages/default/{topic}?start=earliest&limit={limit}", "Later"
    )
    assert [place for page in forth for place in page] == expected
    back = walked(reader, f"/console/messages/default/{topic}?limit={limit}", "Earlier")
    assert [place for page in reversed(back) for place in page] == expected
    assert max(map(len, forth + back)) <= limit


def test_the_address_of_a_page_shows_the_same_messages_later(reader: PageReader, bus: Bus) -> None:
    fill(bus, "sent", 3, 40)
    last = reader.get("/console/messages/default/sent?limit=10")
    here = last.links["Link to this page"]
    back = last.links["Earlier"]
    before = places(reader.get(back))
    for partition in range(3):
        bus.publish("sent", b"newer", partition=partition)
    assert places(reader.get(here)) == places(last)
    assert places(reader.get(back)) == before
    newer = reader.get(last.links["Load newer"])
    assert len(places(newer)) == 3


def test_a_place_is_named_in_many_ways(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("named")
    first = bus.publish("named", b"first")
    while (second := bus.publish("named", b"second")).time_ms == first.time_ms:
        pass
    written = datetime.fromtimestamp(second.time_ms / 1000, UTC)
    moment = written.strftime("%Y-%m-%d %H:%M:%S.") + f"{second.time_ms % 1000:03d}"
    everything = stored(bus, "named")
    for text in (str(second.time_ms), moment, moment + "Z", str(second), f"id:{second}"):
        page = reader.get(f"/console/messages/default/named?start={quote(text)}")
        assert places(page)[-1] == everything[-1], text
        assert places(page)[0] == f"0/{second_offset(bus, second)}", text
    for text in ("offset:1", "1", "0:1"):
        page = reader.get(f"/console/messages/default/named?start={text}")
        assert places(page) == everything[1:]
    after = reader.get(f"/console/messages/default/named?start=after:{second}")
    assert len(places(after)) == len(everything) - 1 - everything.index(
        f"0/{second_offset(bus, second)}"
    )


def second_offset(bus: Bus, id: object) -> int:
    with bus.consumer("named", stop_at_end=True) as consumer:
        return next(one.offset for one in consumer if one.id == id)


@pytest.mark.parametrize(
    ("query", "field", "status"),
    [
        ("where=key", "Only where", 422),
        ("where=key%3D%22open", "Only where", 422),
        ("start=yesterday", "From", 400),
        ("start=2026-13-40", "From", 422),
        ("start=offset:", "From", 422),
        ("start=time:99999999999999999", "From", 422),
        ("start=0001-01-01", "From", 422),
        ("start=zz" + "z" * 38, "From", 400),
        ("partition=9", "Partition", 422),
        ("partition=%C2%B2", "Partition", 422),
        ("before=nothing", "before", 422),
        ("limit=100000", "limit", 422),
        ("as=markup", "as", 422),
        ("isolation=snapshot", "isolation", 422),
        (f"start={quote(HOSTILE)}", "From", 400),
        (f"where={quote(HOSTILE)}", "Only where", 422),
    ],
)
def test_a_mistake_is_shown_beside_its_field(
    reader: PageReader, bus: Bus, query: str, field: str, status: int
) -> None:
    bus.create_topic("mistaken")
    page = reader.get(f"/console/messages/default/mistaken?{query}")
    assert page.status == status
    assert f"<strong>{field}:</strong>" in page.html
    assert HOSTILE not in page.html
    assert 'name="where"' in page.html  # the form stays


def test_a_filter_shows_what_matches_and_how_far_it_looked(reader: PageReader, bus: Bus) -> None:
    fill(bus, "filtered", 4, 60)
    expected = stored(bus, "filtered", where="header.kind = odd")
    query = f"where={quote('header.kind = odd')}&limit=7"
    last = reader.get(f"/console/messages/default/filtered?{query}")
    assert places(last) == expected[-7:]
    assert re.search(r"7 of \d+ messages that were looked at match", last.text)
    back = walked(reader, f"/console/messages/default/filtered?{query}", "Look further back")
    assert [place for page in reversed(back) for place in page] == expected
    forth = walked(
        reader, f"/console/messages/default/filtered?start=earliest&{query}", "Go on from here"
    )
    assert sorted(place for page in forth for place in page) == sorted(expected)


def test_a_filter_that_matches_nothing_says_how_far_it_looked(
    served: Served, reader: PageReader, bus: Bus
) -> None:
    bus.create_topic("unmatched")
    messages = [b"%d" % number for number in range(12_000)]
    bus.publish_many("unmatched", messages)
    page = reader.get("/console/messages/default/unmatched?where=key%3Dnone")
    assert "0 of 10 000 messages that were looked at match" in page.text
    further = reader.get(page.links["look further back"])
    assert "0 of 2 000 messages" in further.text
    assert "look further back" not in further.links
    forth = reader.get("/console/messages/default/unmatched?start=earliest&where=key%3Dnone")
    assert "0 of 12 000 messages" in forth.text and "go on from here" not in forth.links


def test_the_last_of_many_matches_are_found(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("matching")
    bus.publish_many("matching", [b"%d" % number for number in range(5_000)], [b"k"] * 5_000)
    page = reader.get("/console/messages/default/matching?where=key%3Dk&limit=20")
    assert places(page) == [f"0/{offset}" for offset in range(4_980, 5_000)]


def test_a_page_of_large_values_is_small(served: Served, reader: PageReader, bus: Bus) -> None:
    bus.create_topic("large", partitions=2, message_bytes_max=8 << 20)
    value = random.Random(1).randbytes(4 << 20)
    for number in range(8):
        content = value + value if number % 2 else b'{"a": "' + value.hex().encode()
        content = content[: (8 << 20) - (64 << 10)]
        bus.publish("large", content, key=value[: 64 << 10], partition=number % 2)
    expected = stored(bus, "large")
    before = served.service.fetching.bytes
    tracemalloc.start()
    try:
        path = "/console/messages/default/large"
        forth = walked(reader, f"{path}?start=earliest&limit=200", "Later")
        back = walked(reader, f"{path}?limit=200", "Earlier")
        page = reader.get(f"{path}?start=earliest&limit=200")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [place for one in forth for place in one] == expected
    assert [place for one in reversed(back) for place in one] == expected
    assert max(map(len, forth + back)) == 1
    assert peak_bytes < 6 * (8 << 20), "a page has one message in memory, several times"
    assert len(page.html) < 100 << 10
    assert "of 7.94 MiB" in page.text
    assert served.service.fetching.bytes == before


def test_a_full_page_of_200_is_small(served: Served, bus: Bus) -> None:
    bus.create_topic("full", partitions=4)
    chosen = random.Random(2)
    for number in range(200):
        headers = {f"header-{n}": chosen.randbytes(30).hex().encode() for n in range(10)}
        value = chosen.randbytes(3_000)
        value = value if number % 2 else value.hex().encode()
        bus.publish("full", value, key=chosen.randbytes(40), headers=headers)
    body = compressed(served, "/console/messages/default/full?start=earliest&limit=200")
    assert len(body) < 100 << 10


def compressed(served: Served, target: str) -> bytes:
    """A page as a browser takes it."""
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    with closing(connection):
        connection.request("GET", target, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-encoding"] == "gzip"
        return answer.read()


def test_hostile_messages_are_shown_and_not_executed(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("hostile")
    cells = [
        HOSTILE.encode(),
        b"</td></table><a href='http://other.test/'>win</a>",
        b"\x1b]0;pwned\x07\x1b[31mred",
        "\u202egnp.exe".encode(),
        b"half \xf0\x9f\x92",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"big": 9007199254740993, "exact": 1.10, "twice": 1, "twice": 2}',
        b"",
    ]
    for cell in cells:
        bus.publish("hostile", cell, key=cell, headers={cell.decode(errors="replace") or "-": cell})
    for form in ("auto", "json", "text", "hex"):
        page = reader.get(f"/console/messages/default/hostile?start=earliest&as={form}")
        assert len(places(page)) == len(cells)
        assert HOSTILE not in page.html and "other.test" not in page.links.values()
        assert "\x1b" not in page.html and "\u202e" not in page.html
        for link in [page.links[place] for place in places(page)]:
            one = reader.get(f"{link}?as={form}")
            assert one.status == 200
            assert HOSTILE not in one.html
            assert "\x1b" not in one.html and "\u202e" not in one.html
    listed = reader.get("/console/messages/default/hostile?start=earliest").text
    assert "⟨U+001B⟩" in listed and "⟨U+202E⟩" in listed
    assert "68 61 6c 66" in listed  # half a character: hexadecimal
    exact = reader.get("/console/messages/default/hostile?start=offset:6&as=json").text
    assert '"big": 9007199254740993' in exact and '"exact": 1.10' in exact
    assert '"twice": 1, "twice": 2' in exact


def test_names_that_are_none(reader: PageReader) -> None:
    for path in ("default/missing", "default/..%2f..", "..%2f/x", f"default/{quote(HOSTILE, '')}"):
        page = reader.get(f"/console/messages/{path}")
        assert page.status in (400, 404, 422)
        assert HOSTILE not in page.html


def test_committed_and_uncommitted(served: Served, reader: PageReader, bus: Bus) -> None:
    bus.create_topic("pending")
    bus.publish("pending", b"before")
    id = bus.admin.transactions.begin().transaction_id
    transactions = served.service.engine.transactions
    undecided = [NewBlock(0, encode([b"undecided"]))]
    transactions.submit(TopicName.parse("pending"), undecided, id).result(PATIENCE_S)
    bus.publish("pending", b"behind")
    committed = reader.get("/console/messages/default/pending")
    assert places(committed) == ["0/0"] and "Later" not in committed.links
    page = reader.get("/console/messages/default/pending?isolation=uncommitted")
    assert places(page) == ["0/0", "0/1", "0/2"] and "undecided" in page.text
    assert "no message" in reader.get(page.links["0/1"].partition("?")[0]).text
    assert "undecided" in reader.get(page.links["0/1"]).text
    bus.admin.transactions.abort(id)
    assert places(reader.get("/console/messages/default/pending")) == ["0/0", "0/2"]


def test_messages_that_are_gone_are_named(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("trimmed", partitions=2)
    for partition in (0, 1):
        bus.publish_many("trimmed", [b"%d" % n for n in range(9)], partition=partition)
    sent = reader.get("/console/messages/default/trimmed?start=earliest&limit=10")
    here = sent.links["Link to this page"]
    bus.truncate_topic("trimmed", "offset:4", partition=0)
    page = reader.get(here)
    assert "4 messages that were here are gone" in page.text
    assert "0/4" in places(page) and "0/3" not in places(page)
    assert "are gone" not in reader.get("/console/messages/default/trimmed?start=earliest").text
    bus.truncate_topic("trimmed")
    empty = reader.get(here)
    assert empty.status == 200 and "There are no messages here" in empty.text


def test_partitions_that_are_added_are_on_the_next_page(reader: PageReader, bus: Bus) -> None:
    fill(bus, "grown", 2, 20)
    expected = stored(bus, "grown")
    page = reader.get("/console/messages/default/grown?start=earliest&limit=10")
    last = reader.get("/console/messages/default/grown?limit=10")
    bus.update_topic("grown", partitions=3)
    bus.publish("grown", b"newer", partition=2)
    forth = walked(reader, page.links["Later"], "Later")
    assert [place for one in forth for place in one] == [*expected[10:], "2/0"]
    assert places(reader.get(last.links["Load newer"])) == ["2/0"]
    assert places(reader.get(last.links["Earlier"])) == expected[:-10]


def test_many_partitions_are_shown_one_at_a_time(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("many", partitions=100)
    for partition in (0, 99):
        bus.publish("many", b"%d" % partition, partition=partition)
    page = reader.get("/console/messages/default/many")
    assert places(page) == ["0/0"] and "more than 64 partitions" in page.text
    assert places(reader.get("/console/messages/default/many?partition=99")) == ["99/0"]
    assert len(page.html) < 10_000


# -- a file ----------------------------------------------------------------------------------------


def lines(page: ReadPage) -> list[dict[str, object]]:
    assert page.status == 200
    assert page.headers["content-type"] == "application/x-ndjson"
    assert page.headers["content-disposition"].startswith("attachment; filename=")
    return [json.loads(line) for line in page.html.splitlines()]


def test_a_range_is_downloaded(reader: PageReader, bus: Bus) -> None:
    fill(bus, "kept-lines", 3, 60)
    expected = stored(bus, "kept-lines")
    page = reader.get("/console/messages/default/kept-lines?start=earliest&limit=20")
    these = lines(reader.ask("GET", page.links["These as NDJSON"]))
    assert sorted(f"{one['partition']}/{one['offset']}" for one in these) == sorted(expected[:20])
    bus.publish("kept-lines", b"newer")
    rest = lines(reader.ask("GET", page.links["All from here as NDJSON"]))
    assert sorted(f"{one['partition']}/{one['offset']}" for one in rest) == sorted(expected)
    query = f"?start=earliest&where={quote('header.kind = odd')}"
    filtered = reader.get(f"/console/messages/default/kept-lines{query}")
    odd = lines(reader.ask("GET", filtered.links["All from here as NDJSON"]))
    assert len(odd) == 30 and all(one["headers"]["kind"] == "odd" for one in odd)  # type: ignore[index]


def test_a_long_range_is_downloaded_in_parts(served: Served, reader: PageReader, bus: Bus) -> None:
    bus.create_topic("long", partitions=2)
    bus.publish_many("long", [b"%d" % number for number in range(5_000)])
    rest = lines(reader.ask("GET", "/console/messages/default/long/download"))
    assert sorted(int(str(one["value"])) for one in rest) == [*range(5_000)]
    assert lines(reader.ask("GET", "/console/messages/default/long/download?until=0:0,1:0")) == []
    wrong = reader.ask("GET", "/console/messages/default/long/download?start=first")
    assert wrong.status == 422


# -- what comes ------------------------------------------------------------------------------------


class Following:
    """The events of a page that follows."""

    def __init__(self, url: str, target: str, **cookies: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, 30)
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        self._connection.request("GET", target, headers={"Cookie": cookie} if cookie else {})
        self.answer = self._connection.getresponse()
        self.last = ""

    def event(self) -> tuple[str, object]:
        """The next event's name and data."""
        name = ""
        while line := self.answer.readline().decode().rstrip("\n"):
            pass
        while True:
            line = self.answer.readline().decode()
            assert line, "the events ended"
            if line.startswith("id: "):
                self.last = line[4:].strip()
            elif line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                return name, json.loads(line[6:])

    def values(self, count: int) -> list[str]:
        """The values of the next messages, so many at least."""
        found: list[str] = []
        while len(found) < count:
            name, shown = self.event()
            assert name == "rows", shown
            html = shown["html"]  # type: ignore[index]
            found += re.findall(r'class="value">([^<]*)<', html)
        return found

    def close(self) -> None:
        self._connection.close()


@contextmanager
def following(url: str, target: str, **cookies: str) -> Iterator[Following]:
    followed = Following(url, target, **cookies)
    try:
        yield followed
    finally:
        followed.close()


def test_messages_are_followed_without_gap_or_duplicate(
    served: Served, reader: PageReader, bus: Bus
) -> None:
    fill(bus, "followed", 3, 10)
    page = reader.get("/console/messages/default/followed?follow=1")
    target = re.search(r'data-follow="([^"]*)"', page.html)
    assert target is not None
    address = target[1].replace("&amp;", "&")
    with following(served.url, address) as events:
        assert events.answer.headers["content-type"] == "text/event-stream"
        bus.publish("followed", b"eleven")
        bus.publish("followed", HOSTILE.encode())
        first = events.values(2)
        last = events.last
    assert first == ["eleven", "&lt;script&gt;alert(1)&lt;/script&gt;"]
    for number in range(70):  # while the connection is lost
        bus.publish("followed", b"lost %d" % number)
    with following(served.url, f"{address.partition('?')[0]}?start={last}") as events:
        bus.publish("followed", b"again")
        assert sorted(events.values(71)) == sorted([*(f"lost {n}" for n in range(70)), "again"])


def test_following_with_a_filter(served: Served, bus: Bus) -> None:
    bus.create_topic("followed-some")
    where = quote("header.kind = odd")
    target = f"/console/messages/default/followed-some/follow?where={where}&start=0:0"
    with following(served.url, target) as events:
        for number in range(4):
            kind = b"odd" if number % 2 else b"even"
            bus.publish("followed-some", b"%d" % number, headers={"kind": kind})
        assert events.values(2) == ["1", "3"]


def test_following_does_not_pass_over_what_is_gone(served: Served, bus: Bus) -> None:
    bus.create_topic("followed-trimmed")
    bus.publish_many("followed-trimmed", [b"%d" % number for number in range(9)])
    bus.truncate_topic("followed-trimmed", "offset:5")
    with following(
        served.url, "/console/messages/default/followed-trimmed/follow?start=0:2"
    ) as events:
        name, why = events.event()
    assert name == "ended" and "5" in str(why)


def test_the_head_of_events_and_files(served: Served, bus: Bus) -> None:
    bus.create_topic("head")
    bus.publish("head", b"not here")
    with served.connect() as client:
        for action in ("follow", "download", "download"):
            answer = client.request("HEAD", f"/console/messages/default/head/{action}")
            assert answer.status == 200 and answer.body == b""


def test_following_ends_with_its_topic(served: Served, bus: Bus) -> None:
    bus.create_topic("followed-gone")
    with following(served.url, "/console/messages/default/followed-gone/follow") as events:
        bus.publish("followed-gone", b"last")
        assert events.values(1) == ["last"]
        bus.delete_topic("followed-gone")
        name, why = events.event()
        while name == "rows":
            name, why = events.event()
    assert name == "ended" and "followed-gone" in str(why)


def test_a_browser_that_leaves_is_not_waited_for(served: Served, bus: Bus) -> None:
    bus.create_topic("left")
    polls = served.service.metrics.long_polls
    with following(served.url, "/console/messages/default/left/follow") as events:
        bus.publish("left", b"one")
        events.values(1)
        until(lambda: served.service.metrics.long_polls > polls, "it waits for the next one")
    until(lambda: served.service.metrics.long_polls == polls, "it waits no more")


# -- rights ----------------------------------------------------------------------------------------


def test_a_principal_sees_the_missing_grants(guarded: People) -> None:
    with guarded.bus("admin", "all *") as bus:
        bus.create_topic("secret")
        bus.publish("secret", b"a secret")
    token = guarded.token("watcher", "observe topic:secret")
    reader = PageReader(guarded.url, tms_session=token)
    page = reader.get("/console/messages/default/secret")
    assert page.status == 200
    assert "needs consume on topic:default:secret" in page.text
    assert "a secret" not in page.html and not places(page)
    assert (
        "needs publish on topic:default:secret" in reader.get("/console/topics/default/secret").text
    )
    for path in ("/download", "/follow"):
        answer = reader.ask("GET", f"/console/messages/default/secret{path}")
        assert "a secret" not in answer.html
        assert answer.status == 403 or "event: ended" in answer.html
    consumer = PageReader(guarded.url, tms_session=guarded.token("eater", "consume topic:secret"))
    shown = consumer.get("/console/messages/default/secret")
    assert "a secret" in shown.text and "needs publish" in shown.text
    one = consumer.get(shown.links["0/0"])
    assert "needs manage on topic:default:secret" in one.text
    stranger = PageReader(guarded.url, tms_session=guarded.token("stranger"))
    assert stranger.get("/console/messages/default/secret").status == 403
    assert PageReader(guarded.url).get("/console/messages/default/secret").status == 401


def test_following_ends_with_the_token(guarded: People) -> None:
    with guarded.bus("admin", "all *") as bus:
        bus.create_topic("told")
        token = guarded.access.create_token("follower")
        guarded.access.add_grant("follower", "consume", "topic:told")
        target = "/console/messages/default/told/follow"
        with following(guarded.url, target, tms_session=token.token) as events:
            bus.publish("told", b"one")
            assert events.values(1) == ["one"]
            guarded.access.revoke_token(token.id)
            bus.publish("told", b"two")
            name, _ = events.event()
            assert name == "ended"


# -- three instances -------------------------------------------------------------------------------


def test_messages_of_all_owners(three: Instances) -> None:
    with three.connect("a") as bus:
        fill(bus, "spread", 6, 60)
        expected = stored(bus, "spread")
    assert len(set(three.owners("spread"))) > 1
    for id in ("a", "b", "c"):
        reader = PageReader(three.url(id))
        path = "/console/messages/default/spread"
        forth = walked(reader, f"{path}?start=earliest&limit=20", "Later")
        assert [place for page in forth for place in page] == expected
        back = walked(reader, f"{path}?limit=20", "Earlier")
        assert [place for page in reversed(back) for place in page] == expected
        assert len(lines(reader.ask("GET", f"{path}/download"))) == 60
    with three.connect("b") as bus, following(three.url("c"), f"{path}/follow") as events:
        for partition in range(6):
            bus.publish("spread", b"%d" % partition, partition=partition)
        assert sorted(events.values(6)) == [f"{partition}" for partition in range(6)]
