"""Publishing by a form: what is typed is what is stored, once."""

from collections.abc import Iterator
from typing import Any

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances
from tests.http_kit import Served
from tests.pages_kit import PageForm, PageReader, ReadPage
from tms.client.client import Bus
from tms.console.pages.publish_forms import PublishForm

HOSTILE = "</textarea><script>alert(1)</script>"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as connected:
        yield connected


def form(page: ReadPage, topic: str) -> PageForm:
    return page.form(f"/publish/default/{topic}")


def sent(reader: PageReader, topic: str, **fields: str) -> ReadPage:
    """The page to which a new form with these fields leads."""
    page = reader.get(f"/console/publish/default/{topic}")
    return reader.send(form(page, topic), **fields)


def stored(bus: Bus, topic: str) -> list[tuple[Any, ...]]:
    with bus.consumer(topic, stop_at_end=True) as consumer:
        return [(one.key, one.value, dict(one.headers)) for one in consumer]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": "plain"}, (None, b"plain", {})),
        ({"value": ""}, (None, b"", {})),
        ({"value_as": "none", "key": "k", "key_as": "text"}, (b"k", None, {})),
        ({"value": "two\r\nlines\r\n"}, (None, b"two\nlines\n", {})),
        (
            {"value": '{"big": 9007199254740993.10}', "value_as": "json"},
            (None, b'{"big": 9007199254740993.10}', {}),
        ),
        ({"value": "00 ff\r\n0A", "value_as": "hex"}, (None, b"\x00\xff\n", {})),
        ({"value": "AP8=", "value_as": "base64"}, (None, b"\x00\xff", {})),
        ({"value": "v", "key": "", "key_as": "text"}, (b"", b"v", {})),
        ({"value": "v", "key": "00", "key_as": "hex"}, (b"\x00", b"v", {})),
        (
            {"value": "v", "headers": 'a=1\r\n\r\nb=x"00ff"\r\nc\r\n"d=e"="f\\ng"\r\nh=i=j'},
            (None, b"v", {"a": b"1", "b": b"\x00\xff", "c": None, "d=e": b"f\ng", "h": b"i=j"}),
        ),
        ({"value": HOSTILE, "key": HOSTILE, "key_as": "text"}, (HOSTILE.encode(),) * 2 + ({},)),
        ({"value": "\u202e\x1b[31m"}, (None, "\u202e\x1b[31m".encode(), {})),
    ],
)
def test_what_is_typed_is_stored(
    reader: PageReader, bus: Bus, fields: dict[str, str], message: tuple[Any, ...]
) -> None:
    bus.create_topic("typed")
    before = len(stored(bus, "typed"))
    page = sent(reader, "typed", **fields)
    assert page.status == 200, page.text
    assert "Published to partition 0 at offset" in page.text
    assert HOSTILE not in page.html
    assert stored(bus, "typed")[before:] == [message]
    assert f"0/{before}" in page.text  # it leads to the message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"value": "{", "value_as": "json"}, "value"),
        ({"value": "[" * 10_000 + "]" * 10_000, "value_as": "json"}, "value"),
        ({"value": "0", "value_as": "hex"}, "value"),
        ({"value": "é", "value_as": "hex"}, "value"),
        ({"value": "A", "value_as": "base64"}, "value"),
        ({"value": "there", "value_as": "none"}, "value"),
        ({"value": "v", "value_as": "markup"}, "value"),
        ({"value": "x" * 2_000_000}, "value"),
        ({"key": "typed", "key_as": "none"}, "key"),
        ({"key": "0x", "key_as": "hex"}, "key"),
        ({"headers": "=v"}, "headers"),
        ({"headers": "a=1\r\na=2"}, "headers"),
        ({"headers": '"a'}, "headers"),
        ({"headers": '"a"b'}, "headers"),
        ({"headers": '"\\ud800"=1'}, "headers"),
        ({"headers": "\r\n".join(f"h{n}=1" for n in range(2_000))}, "headers"),
        ({"partition": "9"}, "partition"),
        ({"partition": "-1"}, "partition"),
        ({"partition": "²"}, "partition"),
        ({"durability": "maybe"}, "durability"),
        ({"deliver": "soon"}, "deliver"),
        ({"deliver": "-5s"}, "deliver"),
        ({"deliver": "9999999999999999999d"}, "deliver"),
        ({"event_time": "noon"}, "event_time"),
        ({"event_time": "2026-02-30"}, "event_time"),
    ],
)
def test_a_mistake_is_shown_beside_its_field_and_nothing_is_lost(
    reader: PageReader, bus: Bus, fields: dict[str, str], field: str
) -> None:
    bus.create_topic("mistyped", message_bytes_max=1 << 20)
    typed = {"value": "kept", "headers": "h=kept", **fields}
    page = sent(reader, "mistyped", **typed)
    assert page.status in (400, 404, 413, 422), page.text
    assert f'id="problem-{field}"' in page.html, page.text
    kept = form(page, "mistyped").fields
    for name, text in typed.items():
        if not name.endswith("_as") and name != "durability":
            assert kept[name] == text.replace("\r\n", "\n") or kept[name] == text
    assert stored(bus, "mistyped") == []
    right = {"value": "v", "value_as": "text", "key": "", "key_as": "none", "headers": "h=kept"}
    right |= dict.fromkeys(("partition", "durability", "deliver", "event_time"), "")
    mended = reader.send(form(page, "mistyped"), **right)
    assert "Published" in mended.text
    bus.truncate_topic("mistyped")


def test_a_form_that_is_sent_twice_publishes_once(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("once", partitions=3)
    page = reader.get("/console/publish/default/once")
    first = reader.send(form(page, "once"), value="one")
    second = reader.send(form(page, "once"), value="one")
    assert "Published" in first.text and reader.at.split("/")[-1] in first.text
    assert first.text.split("Published")[1][:60] == second.text.split("Published")[1][:60]
    assert len(stored(bus, "once")) == 1
    other = reader.send(form(page, "once"), value="another")
    assert other.status == 422 and "was sent before with other contents" in other.text
    assert len(stored(bus, "once")) == 1
    assert "Published" in reader.send(form(other, "once")).text
    assert sorted(value for _, value, _ in stored(bus, "once")) == [b"another", b"one"]


@pytest.mark.parametrize("once", ["", "short", "x" * 65, "a\r\nx-evil: 1 and more", "é" * 20])
def test_a_forged_id_of_a_form_is_refused(reader: PageReader, bus: Bus, once: str) -> None:
    bus.create_topic("forged")
    page = sent(reader, "forged", value="v", once=once)
    assert page.status == 422 and "had no id" in page.text
    assert stored(bus, "forged") == []


def test_a_delayed_message(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("later")
    page = reader.get("/console/publish/default/later")
    answers = [
        reader.post("/console/publish/default/later", {**form(page, "later").fields, **fields})
        for fields in [{"value": "v", "deliver": "1h"}] * 2
    ]
    assert [answer.status for answer in answers] == [303, 303]
    assert answers[0].headers["location"] == "/console/delayed/default/later"
    at = {**form(reader.get("/console/publish/default/later"), "later").fields, "value": "w"}
    assert (
        reader.post("/console/publish/default/later", at | {"deliver": "2100-01-01"}).status == 303
    )
    assert [message.value for message in bus.list_delayed("later")] == [b"v", b"w"]


def test_durability_none_has_no_place(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("unwaited")
    page = sent(reader, "unwaited", value="v", durability="none")
    assert page.status == 200 and "Sent to partition 0" in page.text


def test_a_message_is_published_again_edited(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("again")
    headers = {"a": b"1", "n": None, "b=c": b"\x00", "d": b'x"00"', "e": b"two\nlines", "f": b""}
    cells: list[tuple[bytes | None, bytes | None]] = [
        (b"k", b'{"id": 9007199254740993}'),
        (None, b"\nbegins with a line"),
        (b"\x00\xff", b"\xf0\x9f"),
        (b"", None),
        (b"k", b"carriage\r\nreturn"),
        (b"k", HOSTILE.encode()),
    ]
    for key, value in cells:
        id = bus.publish("again", value, key=key, headers=headers, event_time_ms=5)
        page = reader.get(
            reader.get(f"/console/messages/default/again/0/{id}").links[
                "Publish this one again, edited…"
            ]
        )
        assert HOSTILE not in page.html
        unchanged = reader.send(form(page, "again"))
        assert "Published" in unchanged.text, unchanged.text
        original, copy = stored(bus, "again")[-2:]
        assert copy == original
    with bus.consumer("again", stop_at_end=True) as consumer:
        assert {one.event_time_ms for one in consumer} == {5}
    page = reader.get(f"/console/publish/default/again?again=0:{id}")
    reader.send(form(page, "again"), value="edited", value_as="text")
    assert stored(bus, "again")[-1] == (b"k", b"edited", headers)
    for wrong in ("0:" + "0" * 40, "x", "0:zz", f"9:{id}"):
        assert reader.get(f"/console/publish/default/again?again={wrong}").status in (400, 404, 422)


def test_the_command_that_does_the_same(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("shown")
    fields = {"value": "it's {1}", "key": "k", "key_as": "text", "headers": "a=b c"}
    page = sent(reader, "shown", do="show", partition="0", deliver="90s", **fields)
    assert page.status == 200
    assert "printf '%s\\n' 'k::it'\"'\"'s {1}' | tms publish shown --key-delim ::" in page.text
    assert "--header 'a=b c' --partition 0 --delay 90s" in page.text
    assert "curl -X POST" in page.text and "idempotency-key: " in page.text
    assert stored(bus, "shown") == []
    assert form(page, "shown").fields["value"] == "it's {1}"
    binary = sent(reader, "shown", do="show", value="00", value_as="hex")
    assert "takes a message from a line of text" in binary.text and "AA==" in binary.text
    large = sent(reader, "shown", do="show", value="x" * 50_000)
    assert "@message.json" in large.text


def test_a_topic_that_is_gone(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("gone")
    page = reader.get("/console/publish/default/gone")
    bus.delete_topic("gone")
    late = reader.send(form(page, "gone"), value="kept")
    assert late.status == 404 and "no topic gone" in late.text
    assert form(late, "gone").fields["value"] == "kept"
    assert reader.get("/console/publish/default/gone").status == 404


def test_a_principal_that_may_not_publish(guarded: People) -> None:
    with guarded.bus("admin", "all *") as bus:
        bus.create_topic("closed")
        reader = PageReader(guarded.url, tms_session=guarded.token("pat", "consume topic:closed"))
        page = reader.get("/console/publish/default/closed")
        assert "needs publish on topic:default:closed" in page.text
        refused = reader.send(form(page, "closed"), value="kept")
        assert refused.status == 403 and form(refused, "closed").fields["value"] == "kept"
        token = guarded.token("paul", "publish topic:closed")
        writer = PageReader(guarded.url, tms_session=token)
        page = writer.get("/console/publish/default/closed")
        done = writer.send(form(page, "closed"), value="by paul")
        assert done.status == 200 and "Published to partition 0 at offset 0" in done.text
        assert stored(bus, "closed") == [(None, b"by paul", {})]


def test_publishing_at_any_instance(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.create_topic("anywhere", partitions=4)
        for id in ("a", "b", "c"):
            reader = PageReader(three.url(id))
            for partition in range(4):
                page = reader.get("/console/publish/default/anywhere")
                for _ in range(2):
                    fields = {"value": f"{id}{partition}", "partition": str(partition)}
                    done = reader.send(form(page, "anywhere"), **fields)
                    assert f"Published to partition {partition}" in done.text, done.text
        values = sorted(value for _, value, _ in stored(bus, "anywhere"))
    assert values == sorted(f"{id}{one}".encode() for id in "abc" for one in range(4))


def test_a_form_of_any_bytes_is_unchanged() -> None:
    cells = (bytes(range(256)), bytes(range(255, -1, -1)), {"h": bytes(range(256)), '\n="': b"\r"})
    message = PublishForm.of(cells, 12).renewed().message()
    assert (message.key, message.value, message.headers) == cells
    assert message.event_time_ms == 12
