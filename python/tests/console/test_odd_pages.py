"""Every page with odd but legal names and contents, and with odd queries, as an administrator, as a
principal that sees one namespace, and as one that sees nothing.

The service has two namespaces alike. Topics of `own` are seen by the observer; nothing of `veiled`
may reach another page than the administrator's.
"""

import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest

from tests.access_kit import People
from tests.console_kit import console_served
from tests.pages_kit import PageReader, ReadPage
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.client.client import Bus
from tms.console.pages.table import ROUTES
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock
from tms.server.service import AccessLimits

SEED = 38
ROUNDS = 6  # draws of a query for each page
NAMESPACES = ("own", "veiled")
SECRET = "tell-nobody"  # in everything of `veiled` but the names in addresses
HIDDEN = "\u202e"  # turns what follows
_OWN = re.compile(r"/console|\?|#|data:,|$")
MARK = "<b id=pwned onclick=x>"
FRAGMENTS = (
    MARK,
    '"onload="pwned()',
    "'; pwned #",
    "$(pwned)",
    "{{ 7*7 }}",
    f"{HIDDEN}gnp",
    "&amp;lt;",
    "-rf",
    " ",
    "?a=b&c",
    "ü€😀",
    "http:\\\\x",
)
BYTES = (b"\x00\xff", b"{" * 5_000, b"]]>", b"\r\nx: y", b"javascript:pwned()", MARK.encode())
ODD = (
    "",
    "0",
    "-1",
    "1",
    "9" * 30,
    "0" * 19 + "1" + "9" * 12,
    "0" * 9 + "7" * 9,
    "\u0663",
    "\x00\r\n",
    "..",
    "%2e%2e",
    "1e999",
    "nan",
    "0001-01-01",
    "0001-01-01T00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "time:99999999999999999999",
    "offset:9223372036854775807",
    "earliest",
    "latest",
    "0:0",
    "9999:999999999999999999",
    "id:0",
    "yes",
    "key = ",
    'key = "' + MARK + '"',
    "name",
    "messages",
    "waiting",
    "json",
    "hex",
    "next",
    "previous",
    "uncommitted",
    "time",
    "shift",
    "own",
    "veiled",
    "transactions",
    "topic:own:a",
    *FRAGMENTS,
)
FIELDS = [
    "after",
    "again",
    "all",
    "as",
    "before",
    "cause",
    "cell",
    "everywhere",
    "follow",
    "go",
    "group",
    "id",
    "instance",
    "isolation",
    "key",
    "level",
    "limit",
    "logger",
    "mends",
    "namespace",
    "older_than",
    "order",
    "partition",
    "partitions",
    "pattern",
    "period",
    "resource",
    "search",
    "start",
    "to",
    "topic",
    "until",
    "value",
    "verb",
    "where",
]
ENDLESS = ("/follow",)  # ends of paths that answer events


class _Odd(HTMLParser):
    """The elements of a page that its author did not write."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        if HIDDEN in data:
            self.found.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_script = name.startswith("on") or (value or "").strip().startswith("javascript:")
            if is_script or (name == "id" and value == "pwned"):
                self.found.append(f"{tag} {name}={value}")
            is_hidden = name != "value" and HIDDEN in (value or "")
            leads = name in ("href", "action", "src")
            if is_hidden or (leads and not _OWN.match(value or "")):
                self.found.append(f"{tag} {name}={value}")


class _World:
    """A service with odd names, and the addresses of its pages."""

    def __init__(self, people: People) -> None:
        self.people = people
        self.draw = random.Random(SEED)
        self.names: dict[str, dict[str, str]] = {}
        self.boss = people.bus("boss", "all *")
        for namespace in NAMESPACES:
            self.names[namespace] = self._fill(namespace, self.boss)

    def name(self, extra: str) -> str:
        return "".join(self.draw.sample(FRAGMENTS, 4))[:120] + extra

    def _fill(self, namespace: str, bus: Bus) -> dict[str, str]:
        extra = SECRET if namespace == "veiled" else "seen"
        topic = f"{namespace}:{self.draw.choice('ab')}.{'x' * 120}"
        bus.create_topic(topic, partitions=3)
        bus.create_topic(f"{namespace}:empty")
        for _ in range(12):
            value = self.draw.choice([None, b"", *BYTES, self.name(extra).encode()])
            bus.publish(
                topic,
                value,
                key=self.draw.choice([b"k", b"", *BYTES]),
                headers={self.name(extra): self.draw.choice(BYTES), "traceparent": b"00-zz"},
            )
        group = f"-{self.name(extra)}".replace(HIDDEN, "")
        with bus.consumer(topic, group=group, start="earliest", stop_at_end=True) as consumer:
            next(iter(consumer))
            consumer.ack()
        queue = bus.queue(topic, group=group)
        for message in queue.receive(6, wait_s=20):
            queue.reject(message, self.name(extra))
        until(lambda: queue.describe().dead == 6, "dead letters")
        queue.receive(2)
        delayed = bus.publish_later(topic, self.name(extra).encode(), delay="1h")
        first = next(iter(bus.consumer(topic, start="earliest", stop_at_end=True)))
        pointer = SystemClock().now_ms() * 1_000_000
        blocks = [NewBlock(0, encode([SECRET.encode()]))]
        engine = self.people.served.service.engine
        engine.transactions.submit(TopicName.parse(topic), blocks, pointer, None).result(PATIENCE_S)
        found = {"namespace": namespace, "topic": topic.partition(":")[2], "group": group}
        found |= {"partition": str(first.partition), "id": str(first.id), "link": "tms_x"}
        found |= {"principal": "boss", "instance": "one", "transaction": str(pointer)}
        found |= {"delayed": str(getattr(delayed, "id", delayed))}
        return found | {"token": bus.admin.access.create_token("ann").id}

    def address(self, path: str, namespace: str) -> str:
        names = self.names[namespace]
        if path.startswith("/console/transactions"):
            names = names | {"id": names["transaction"]}
        quoted = {name: quote(value, safe="") for name, value in names.items()}
        return path.format_map(quoted)

    def query(self, namespace: str) -> str:
        names = self.names[namespace]
        fields = self.draw.sample(FIELDS, self.draw.randrange(1, 7))
        odd = (*ODD, names["group"], names["id"], names["delayed"], f"0:{names['id']}")
        return urlencode([(field, self.draw.choice(odd)) for field in fields])


@pytest.fixture(scope="module")
def world() -> Iterator[_World]:
    with console_served(AccessLimits(audit=True)) as running:
        yield _World(People(running))


def _reader(world: _World, principal: str, *grants: str) -> PageReader:
    return PageReader(world.people.url, tms_session=world.people.token(principal, *grants))


PAGES = [one.path for one in ROUTES if one.method == "GET" and not one.path.endswith(ENDLESS)]


def _read(reader: PageReader, target: str) -> ReadPage:
    page = reader.ask("GET", target)
    assert page.status < 500, (target, page.status, page.text[:600])
    if page.headers["content-type"].startswith("text/html"):
        odd = _Odd(page.html).found
        assert not odd and MARK not in page.html, (target, odd)
    location = page.headers.get("location", "/console/")
    assert location.startswith("/console/") and "\r" not in location, location
    return page


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_odd_names_and_takes_odd_queries(world: _World, path: str) -> None:
    reader = _reader(world, "boss")
    for namespace in NAMESPACES:
        address = world.address(path, namespace)
        _read(reader, address)
        for _ in range(ROUNDS):
            _read(reader, f"{address}?{world.query(namespace)}")


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("principal", ["olga", "nick"])
def test_a_page_shows_nothing_that_its_visitor_may_not_see(
    world: _World, path: str, principal: str
) -> None:
    grants = ["observe topic:own:*", "observe group:own:*", "observe queue:own:*"]
    reader = _reader(world, principal, *(grants if principal == "olga" else ()))
    for namespace in NAMESPACES:
        address = world.address(path, namespace)
        for query in ("", *(world.query("own") for _ in range(ROUNDS))):
            page = _read(reader, f"{address}?{query}" if query else address)
            shown = page.html.replace(world.names["veiled"]["group"], "")
            if SECRET not in address + quote(query):
                assert SECRET not in shown, (principal, address, query)
