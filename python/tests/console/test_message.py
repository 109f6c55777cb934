"""One message: everything of it, its neighbours, its cells as files, its death, its erasure."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances
from tests.http_kit import Served
from tests.pages_kit import PageReader, ReadPage
from tests.waiting import until
from tms.client.client import Bus
from tms.model.ids import MessageId

HOSTILE = "<script>alert(1)</script>"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        yield connected


def at(topic: str, id: object, partition: int = 0) -> str:
    return f"/console/messages/default/{topic}/{partition}/{id}"


def file(served: Served, target: str) -> tuple[http.client.HTTPResponse, bytes]:
    """A file as a browser gets it."""
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", target)
    answer = connection.getresponse()
    return answer, answer.read()


def test_everything_of_a_message_is_shown(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("whole", partitions=2)
    headers = {
        "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01".encode(),
        "kind": b"order",
        "n": None,
    }
    value = b'{"id": 9007199254740993, "cents": 19.90}'
    id = bus.publish("whole", value, key=b"k", headers=headers, partition=1, event_time_ms=1_000)
    page = reader.get(at("whole", id, 1))
    for text in (str(id), TRACE, "kind order", "n null", "1970-01-01 00:00:01.000Z", "41 B"):
        assert text in page.text, text
    assert '"id": 9007199254740993, "cents": 19.90' in page.text
    assert "&#34;id&#34;: 9007199254740993,\n" in page.html  # laid out
    assert f"tms consume whole --start {id} --partition 1 --limit 1" in page.text
    assert "7b 22 69 64" in reader.get(f"{at('whole', id, 1)}?as=hex").text
    assert value.decode() in reader.get(f"{at('whole', id, 1)}?as=text").text
    assert reader.get(f"{at('whole', id, 1)}?as=markup").status == 422


def test_neighbours(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("neighbours", partitions=2)
    ids = [bus.publish("neighbours", b"%d" % number, partition=0) for number in range(4)]
    bus.publish("neighbours", b"other", partition=1)
    bus.erase("neighbours", id=ids[1], partition=0)
    page = reader.get(at("neighbours", ids[2]))
    before = reader.get(page.links["Previous in partition 0"])
    assert str(ids[0]) in before.text
    assert "This is the first message" in reader.get(before.links["Previous in partition 0"]).text
    behind = reader.get(page.links["Next in partition 0"])
    assert str(ids[3]) in behind.text
    assert "This is the last message" in reader.get(behind.links["Next in partition 0"]).text
    around = reader.get(page.links["Messages from here on"])
    assert "0/2" in around.links and "0/0" not in around.links


@pytest.mark.parametrize(
    ("partition", "id", "status"),
    [
        ("0", "0" * 40, 404),
        ("9", "0" * 40, 404),
        ("x", "0" * 40, 422),
        ("99999999999999999999", "0" * 40, 422),
        ("0", "zz", 400),
        ("0", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", 400),
    ],
)
def test_a_message_that_is_not_there(
    reader: PageReader, bus: Bus, partition: str, id: str, status: int
) -> None:
    bus.create_topic("missing")
    bus.publish("missing", b"there")
    for action in ("", "/file", "/erase"):
        page = reader.get(f"/console/messages/default/missing/{partition}/{id}{action}")
        assert page.status == status, page.text
        assert HOSTILE not in page.html


def test_large_cells_are_cut_and_downloaded(served: Served, reader: PageReader, bus: Bus) -> None:
    bus.create_topic("large-cells", message_bytes_max=8 << 20)
    value, key = b'{"a": "' + b"x" * (7 << 20), bytes(range(256)) * 256
    id = bus.publish("large-cells", value, key=key, headers={"h" * 2_000: b"v" * 30_000})
    page = reader.get(at("large-cells", id))
    assert len(page.html) < 100 << 10
    assert "64 KiB, of which only the beginning is shown" in page.text
    assert "7 MiB, of which only the beginning is shown" in page.text
    assert "Too large to be edited in a form" in page.text
    for cell, content in (("value", value), ("key", key)):
        answer, body = file(served, page.links[f"Download the {cell}"])
        assert body == content
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert f'filename="default.large-cells.0.0.{cell}"' in answer.headers["content-disposition"]
    assert reader.get(f"{at('large-cells', id)}/file?cell=headers").status == 422
    tombstone = bus.publish("large-cells", None)
    assert "It has no value" in reader.get(at("large-cells", tombstone)).text
    assert reader.get(f"{at('large-cells', tombstone)}/file").status == 404
    again = reader.get(f"/console/publish/default/large-cells?again=0:{id}")
    assert again.status == 413 and "Download" not in again.links


@pytest.mark.parametrize(
    ("value", "form", "note"),
    [
        (b"[" * 10_000 + b"]" * 10_000, "json", "nested too deeply"),
        (b'{"a": ', "json", "It is no JSON"),
        (b'{"a": "\xff"}', "json", "not UTF-8"),
        (b"half \xf0\x9f\x92", "auto", "not UTF-8"),
        (b"half \xf0\x9f\x92", "text", r"half \xf0\x9f\x92"),
        (b'"' + b"x" * (100 << 10) + b'"', "json", "JSON of more than 64 KiB is not laid out"),
    ],
)
def test_a_value_that_cannot_be_shown_as_asked(
    reader: PageReader, bus: Bus, value: bytes, form: str, note: str
) -> None:
    bus.create_topic("unshown")
    page = reader.get(f"{at('unshown', bus.publish('unshown', value))}?as={form}")
    assert page.status == 200 and note in page.text


def erase_form(reader: PageReader, topic: str, id: object) -> tuple[ReadPage, str]:
    target = f"{at(topic, id)}/erase"
    return reader.get(target), target


def test_a_message_is_erased_once_its_topic_is_typed(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("erasing")
    ids = [bus.publish("erasing", b"%d" % number) for number in range(3)]
    page, target = erase_form(reader, "erasing", ids[1])
    assert "1 message will be taken out" in page.text
    assert f"tms topic erase erasing --id {ids[1]} --partition 0" in page.text
    wrong = reader.send(page.form(), typed="another")
    assert wrong.status == 422 and "Nothing was changed" in wrong.text
    done = reader.send(page.form(), typed="erasing")
    assert done.status == 200 and f"The message {ids[1]} was erased" in done.text
    assert "0/1" not in done.links and {"0/0", "0/2"} <= done.links.keys()
    typed = {**page.form().fields, "typed": "erasing"}
    twice = reader.post(target, typed)
    assert twice.status == 404 and "Nothing was erased" in twice.text
    bus.delete_topic("erasing")
    assert reader.post(target, typed).status == 404


def test_a_dead_letter_says_why_it_died(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("jobs")
    queue = bus.queue("jobs", group="workers")
    original = bus.publish("jobs", b"poison", key=b"k")
    (message,) = queue.receive(1, wait_s=10)
    queue.reject(message, f"ValueError: {HOSTILE}\x1b[31m")
    until(lambda: queue.describe().dead == 1, "it is a dead letter")
    listed = reader.get("/console/messages/default/jobs-workers-dead")
    page = reader.get(listed.links["0/0"])
    assert "Why it died" in page.text and "got it 1 time," in page.text
    assert f"ValueError: {HOSTILE}⟨U+001B⟩[31m" in page.text and HOSTILE not in page.html
    assert page.links["workers"] == "/console/queues/default/jobs/workers"
    assert reader.get(page.links["All dead letters of workers"]).status == 200
    mending = reader.get(page.links["Mend…"])
    assert "You mend a dead letter of the queue workers" in mending.text
    link = page.links["The original, 0/0 of jobs"]
    assert str(original) in reader.get(link).text


@pytest.mark.parametrize(
    "headers",
    [
        {"tms-dead-origin": b"default:x/0/0/zz", "tms-dead-group": b"g"},
        {"tms-dead-origin": b"default:x/0/0/" + b"0" * 40},
        {"tms-dead-origin": b"../../x/0/0/" + b"0" * 40, "tms-dead-group": b"g"},
        {"tms-dead-origin": b"\xff/0/0/" + b"0" * 40, "tms-dead-group": b"g"},
        {"tms-dead-origin": b"default:x/0/0/" + b"0" * 40, "tms-dead-group": b"\xff"},
        {"tms-dead-group": HOSTILE.encode()},
    ],
)
def test_headers_that_only_look_like_a_dead_letter(
    reader: PageReader, bus: Bus, headers: dict[str, bytes]
) -> None:
    bus.create_topic("not-dead")
    page = reader.get(at("not-dead", bus.publish("not-dead", b"v", headers=headers)))
    assert page.status == 200
    assert "Why it died" not in page.text and HOSTILE not in page.html


def test_a_principal_erases_only_what_it_manages(guarded: People) -> None:
    with guarded.bus("admin", "all *") as bus:
        bus.create_topic("managed")
        id = bus.publish("managed", b"kept")
    reader = PageReader(guarded.url, tms_session=guarded.token("mia", "consume topic:managed"))
    page, target = erase_form(reader, "managed", id)
    fields = {**page.form().fields, "typed": "managed"}
    assert reader.post(target, fields).status == 403
    assert "kept" in reader.get(at("managed", id)).text
    watcher = PageReader(guarded.url, tms_session=guarded.token("moe", "observe topic:managed"))
    assert watcher.get(at("managed", id)).status == 403
    assert watcher.get(f"{at('managed', id)}/file").status == 403


def test_a_message_of_each_owner(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.create_topic("owned", partitions=4)
        ids: list[MessageId] = [
            bus.publish("owned", b"of %d" % one, partition=one) for one in range(4)
        ]
    reader = PageReader(three.url("b"))
    for partition, id in enumerate(ids):
        assert f"of {partition}" in reader.get(at("owned", id, partition)).text
        page = reader.get(f"{at('owned', id, partition)}/erase")
        assert "was erased" in reader.send(page.form(), typed="owned").text
        assert reader.get(at("owned", id, partition)).status == 404
