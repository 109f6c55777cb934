"""CloudEvents as messages and back: the rules of the specification, its examples, and the stored
form."""

import base64
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run_seed import examples
from tms import block
from tms.api import cloud_events, messages
from tms.api.cloud_events import as_batch, read_batch, read_binary, read_one
from tms.api.messages import NewMessage
from tms.errors import BadEncoding, BadJson, Invalid, TMSError
from tms.model.message import Fetched, NewBlock, StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName, TopicSettings

TOPIC = TopicName("default", "events")
TIME_MS = 1_767_225_600_123
EVENT: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
SPEC_EXAMPLES: list[dict[str, Any]] = [  # of the JSON format, section 3.2
    {
        **EVENT,
        "time": "2018-04-05T17:31:00Z",
        "comexampleextension1": "value",
        "comexampleothervalue": 5,
        "datacontenttype": "application/vnd.apache.thrift.binary",
        "data_base64": base64.b64encode(b"\x00\xff thrift").decode(),
    },
    {
        **EVENT,
        "unsetextension": None,
        "datacontenttype": "application/xml",
        "data": '<much wow="xml"/>',
    },
    {
        **EVENT,
        "subject": None,
        "datacontenttype": "application/json",
        "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True},
    },
    {**EVENT, "subject": None, "data": "I'm just a string"},
]
SCHEMA = jsonschema_rs.validator_for(msgspec.json.schema(cloud_events.CloudEvent))


def as_bytes(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode()


def read(event: Mapping[str, Any]) -> NewMessage:
    [message] = read_one(as_bytes(event))
    return message


def stored(*new: NewMessage) -> list[dict[str, Any]]:
    """These messages as a fetch of CloudEvents returns them."""
    packed = block.encode(
        [message.value for message in new],
        [message.key for message in new],
        [message.headers for message in new],
    )
    start = {0: Position.earliest()}
    found = Fetched([StoredBlock(0, TIME_MS, len(new) - 1, packed)], start, {0: 1}, {0: 1})
    unpacked = messages.unpacked(found, start, len(new), 1 << 20)
    events: list[dict[str, Any]] = json.loads(as_batch(TOPIC, unpacked))
    return events


STORED = {  # the headers of an event with the key `ann`
    "ce_specversion": b"1.0",
    "ce_id": b"1",
    "ce_source": b"/shop",
    "ce_type": b"order",
    "ce_partitionkey": b"ann",
}


def there_and_back(event: Mapping[str, Any]) -> dict[str, Any]:
    [found] = stored(read(event))
    return found


@pytest.mark.parametrize("event", SPEC_EXAMPLES)
def test_an_example_of_the_specification_comes_back(event: dict[str, Any]) -> None:
    wanted = {name: value for name, value in event.items() if value is not None}
    if "data" in wanted:
        wanted.setdefault("datacontenttype", "application/json")
    if "comexampleothervalue" in wanted:  # the type, which a header cannot express
        wanted["comexampleothervalue"] = "5"
    assert there_and_back(event) == wanted


def test_an_event_is_stored_as_the_kafka_binding_has_it() -> None:
    event = {**EVENT, "partitionkey": "ann", "time": "2026-01-31T09:30:00Z", "data": {"a": 1}}
    message = read(event)
    assert (message.key, message.value, message.partition) == (b"ann", b'{"a": 1}', None)
    assert message.headers == {
        **STORED,
        "ce_time": b"2026-01-31T09:30:00Z",
        "content-type": b"application/json",
    }


@pytest.mark.parametrize(
    ("data", "value"),
    [({}, None), ({"data": None}, b"null"), ({"data": ""}, b'""'), ({"data": [1.50]}, b"[1.5]")],
)
def test_no_data_is_not_null(data: dict[str, Any], value: bytes | None) -> None:
    assert read(EVENT | data).value == value
    assert {k: v for k, v in there_and_back(EVENT | data).items() if k == "data"} == data


def test_data_is_stored_byte_for_byte_as_it_was_sent() -> None:
    sent = as_bytes(EVENT)[:-1] + b', "data": {"n":  1.50, "\\u0061": 1e2}}'
    [message] = read_one(sent)
    assert message.value == b'{"n":  1.50, "\\u0061": 1e2}'


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({name: None}, name) for name in cloud_events.REQUIRED),
        *(({name: ""}, name) for name in (*cloud_events.REQUIRED, "subject", "partitionkey")),
        ({"specversion": "0.3"}, "specversion"),
        ({"id": 1}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"id": "a\x7fb"}, "id"),
        ({"id": "\ufdd0"}, "id"),
        ({"id": "\U0001fffe"}, "id"),
        ({"source": "a b"}, "source"),
        ({"source": "ü"}, "source"),
        ({"source": "%zz"}, "source"),
        ({"dataschema": "/relative"}, "dataschema"),
        ({"dataschema": "1a:b"}, "dataschema"),
        ({"datacontenttype": "json"}, "datacontenttype"),
        ({"datacontenttype": "a/b;c"}, "datacontenttype"),
        ({"time": "2026-01-31"}, "time"),
        ({"time": "2026-01-31T09:30:00"}, "time"),
        ({"time": "2026-13-31T09:30:00Z"}, "time"),
        ({"time": "2026-02-30T09:30:00Z"}, "time"),
        ({"time": "2026-04-31T09:30:00Z"}, "time"),
        ({"time": "2026-01-31T24:30:00Z"}, "time"),
        ({"time": 1_767_225_600}, "time"),
        ({"Extension": "x"}, "Extension"),
        ({"my-extension": "x"}, "my-extension"),
        ({"my_extension": "x"}, "my_extension"),
        ({"": "x"}, ""),
        ({"extension": {"a": 1}}, "extension"),
        ({"extension": [1]}, "extension"),
        ({"extension": 1.5}, "extension"),
        ({"extension": 2**31}, "extension"),
        ({"extension": -(2**31) - 1}, "extension"),
        ({"extension": "\x00"}, "extension"),
        ({"data": 1, "data_base64": ""}, "data"),
        ({"data_base64": None}, "data_base64"),
        ({"data_base64": 1}, "data_base64"),
        ({"data_base64": "a"}, "data_base64"),
        ({"data_base64": "YQ="}, "data_base64"),
        ({"datacontenttype": "text/plain", "data": {}}, "data"),
        ({"datacontenttype": "text/plain", "data": None}, "data"),
        ({"datacontenttype": "text/plain; charset=latin-1", "data": "ü"}, "datacontenttype"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises((Invalid, BadEncoding)) as raised:
        read(EVENT | changes)
    assert raised.value.details == {"field": field}
    with pytest.raises((Invalid, BadEncoding)) as raised:
        read_batch(b"[%b, %b]" % (as_bytes(EVENT), as_bytes(EVENT | changes)))
    assert raised.value.details == {"field": field, "index": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "https://a.example/b?c=d#e"},
        {"source": "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"},
        {"source": "1-555-123-4567"},
        {"source": "%C3%BC"},
        {"dataschema": "https://a.example/schema"},
        {"datacontenttype": 'multipart/mixed; boundary="a b"'},
        {"time": "2026-01-31t09:30:00.123456789z"},
        {"time": "2016-12-31T23:59:60Z"},
        {"time": "2026-02-28T09:30:00+14:00"},
        {"subject": "a ü \U0001f600"},
        {"a": "", "b0": True, "c": -(2**31), "d": 2**31 - 1, "e": 2.0, "f": None},
        {"data_base64": ""},
        {"datacontenttype": "application/vnd.a+JSON; v=1", "data": [1]},
        {"datacontenttype": "text/plain; charset=UTF-8", "data": "ü"},
    ],
)
def test_what_the_rules_allow_is_read_and_shown(changes: dict[str, Any]) -> None:
    event = EVENT | changes
    SCHEMA.validate(event)
    found = there_and_back(event)
    SCHEMA.validate(found)
    for name, value in changes.items():
        if isinstance(value, bool):
            assert found[name] == str(value).lower()
        elif isinstance(value, int | float):
            assert found[name] == str(int(value))
        elif value is None:
            assert name not in found
        else:
            assert found[name] == value


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'{"id": "1"', b'{"id":"1","id":"2"}', b"{}"])
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises((BadJson, Invalid)):
        read_one(body)


def test_a_batch_may_be_empty_and_has_objects_only() -> None:
    assert read_batch(b"[]") == []
    for body in (b"{}", b"[1]", b"[[]]", b"null"):
        with pytest.raises(Invalid):
            read_batch(body)


# -- HTTP headers ----------------------------------------------------------------------------------

SENT = {b"ce-specversion": b"1.0", b"ce-id": b"1", b"ce-source": b"/shop", b"ce-type": b"order"}


def test_headers_are_attributes_and_the_body_is_the_data() -> None:
    headers = {**SENT, b"host": b"x", b"content-type": b"text/plain", b"ce-partitionkey": b"ann"}
    [message] = read_binary(headers, b"\xff")
    assert (message.value, message.key) == (b"\xff", b"ann")
    assert message.headers == {**STORED, "content-type": b"text/plain"}


def test_an_empty_body_is_no_data() -> None:
    [message] = read_binary(SENT, b"")
    assert message.value is None
    assert stored(message) == [EVENT]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),  # from the specification
        (b"Euro%20%e2%82%ac", "Euro €"),
        (b'"quoted \\"text\\""', 'quoted "text"'),
        (b'"%E2%82%AC"', "€"),
        (b"%2541", "%41"),  # once
        (b"a b", "a b"),
        (b'"a" and "b', 'a and "b'),
        (b'"a\\', '"a\\'),
        (b"50%", "50%"),
    ],
)
def test_a_header_is_decoded_as_the_specification_says(sent: bytes, text: str) -> None:
    [message] = read_binary({**SENT, b"ce-subject": sent}, b"")
    assert message.headers is not None
    assert message.headers["ce_subject"] == text.encode()


@pytest.mark.parametrize("sent", [b'"\\', b'"', b'\\"', b"%", b"; charset=", b"a/b;", b"+xml "])
def test_no_header_takes_long_to_read(sent: bytes) -> None:
    many = sent * (60_000 // len(sent))
    headers = {**SENT, b"ce-subject": b'"' + many, b"content-type": b"a/b" + many}
    began_s = time.process_time()
    with contextlib.suppress(Invalid):
        read_binary(headers, b"x")
    with contextlib.suppress(Invalid):
        read_binary(headers | {b"content-type": b"text/plain"}, b"x")
    for stored_type in (many, b"a/b" + many, b"text/x;" + many):
        stored(NewMessage(b"x", None, {"content-type": stored_type}, None))
    assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        *(({name: None}, name[3:].decode()) for name in SENT),
        ({b"ce-subject": b"%C0%A0"}, "subject"),
        ({b"ce-subject": b"%0A"}, "subject"),
        ({b"ce-datacontenttype": b"text/plain"}, "datacontenttype"),
        ({b"ce-data": b"x"}, "data"),
        ({b"ce-my-extension": b"x"}, "my-extension"),
        ({b"ce-": b"x"}, ""),
        ({b"content-type": b"json"}, "datacontenttype"),
    ],
)
def test_a_header_that_breaks_a_rule_is_named(headers: dict[bytes, Any], field: str) -> None:
    sent = {name: value for name, value in (SENT | headers).items() if value is not None}
    with pytest.raises(Invalid) as raised:
        read_binary(sent, b"x")
    assert raised.value.details == {"field": field}


# -- out -------------------------------------------------------------------------------------------


def test_a_message_that_is_no_event_is_shown_as_one() -> None:
    plain = NewMessage(b'{"a": 1}', b"ann", {"kind": b"x", "ce_id": b"7"}, None)
    [event] = stored(plain)
    SCHEMA.validate(event)
    assert event == {
        "specversion": "1.0",
        "id": f"{TIME_MS:016x}" + "0" * 24,
        "source": "/v2/namespaces/default/topics/events/partitions/0",
        "type": "tms.message",
        "time": "2026-01-01T00:00:00.123Z",
        "partitionkey": "ann",
        "data": {"a": 1},
    }


def test_messages_of_a_topic_have_ids_of_their_own() -> None:
    events = stored(*[NewMessage(b"", None, None, None)] * 3)
    assert len({event["id"] for event in events}) == 3


@pytest.mark.parametrize(
    ("value", "content_type", "shown"),
    [
        (None, None, {}),
        (b"", None, {"data_base64": ""}),
        (b"{", None, {"data_base64": "ew=="}),
        (b"[" * 100_000, None, {"data_base64": base64.b64encode(b"[" * 100_000).decode()}),
        (b"{", b"application/json", {"data_base64": "ew=="}),
        (b"<a/>", b"text/xml", {"data": "<a/>"}),
        (b"<a/>", b"image/svg+xml", {"data": "<a/>"}),
        (b"\xff", b"text/plain", {"data_base64": "/w=="}),
        (b"a", b"text/plain; charset=utf-16", {"data_base64": "YQ=="}),
        (b"a", b"application/octet-stream", {"data_base64": "YQ=="}),
    ],
)
def test_data_is_shown_as_its_type_allows(
    value: bytes | None, content_type: bytes | None, shown: dict[str, Any]
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    [event] = stored(NewMessage(value, None, headers, None))
    assert {name: cell for name, cell in event.items() if name.startswith("data")} == (
        shown if content_type is None else {**shown, "datacontenttype": content_type.decode()}
    )


ANYTHING = st.binary(max_size=12) | st.text(max_size=12).map(str.encode)
HEADERS = st.dictionaries(
    st.sampled_from(["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_data"])
    | st.sampled_from(["content-type", "ce_partitionkey", "ce_", "ce_A", "ce_data_base64", "x"]),
    st.sampled_from([b"1.0", b"/a", b"text/plain", b"application/json"]) | ANYTHING,
    max_size=8,
)


@pytest.mark.parametrize("count", examples(100, 300))
def test_whatever_is_stored_is_shown_as_a_valid_event(count: int) -> None:
    settings(max_examples=count)(
        given(ANYTHING | st.none(), ANYTHING | st.none(), HEADERS)(_is_shown_as_a_valid_event)
    )()


def _is_shown_as_a_valid_event(
    value: bytes | None, key: bytes | None, headers: dict[str, bytes]
) -> None:
    [event] = stored(NewMessage(value, key, headers, None))
    SCHEMA.validate(event)
    [again] = read_one(as_bytes(event))  # it can be published again
    if "data_base64" in event or event.get("datacontenttype", "").startswith("text/"):
        assert again.value == value
    else:
        assert (again.value is None) == (value is None)


@pytest.mark.parametrize("count", examples(100, 300))
def test_what_the_document_allows_is_read_and_nothing_else(count: int) -> None:
    settings(max_examples=count)(
        given(
            st.dictionaries(
                st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text()
            )
        )(_is_read_if_the_document_allows_it)
    )()


def _is_read_if_the_document_allows_it(some: dict[str, Any]) -> None:
    event = EVENT | some
    try:
        SCHEMA.validate(event)
    except jsonschema_rs.ValidationError:
        with pytest.raises(TMSError):
            read(event)
    else:
        read(event)


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAME = st.sampled_from([*cloud_events.RULES, "data", "data_base64", "x"]) | st.text(max_size=5)
SOME = st.dictionaries(NAME, JSON_VALUE, max_size=3)
BODY = SOME.map(lambda some: as_bytes(EVENT | some)) | st.binary(max_size=40)


@pytest.mark.parametrize("count", examples(100, 300))
def test_whatever_is_sent_is_an_event_or_refused(count: int) -> None:
    settings(max_examples=count)(
        given(BODY, st.dictionaries(st.sampled_from([*SENT, b"ce-x", b"content-type"]), BODY))(
            _is_an_event_or_refused
        )
    )()


def _is_an_event_or_refused(body: bytes, headers: dict[bytes, bytes]) -> None:
    for sent, parse in ((body, read_one), (b"[%b]" % body, read_batch)):
        with contextlib.suppress(TMSError):
            SCHEMA.validate(stored(*parse(sent))[0])
    with contextlib.suppress(TMSError):
        SCHEMA.validate(stored(*read_binary(headers, body))[0])
    with contextlib.suppress(TMSError):
        SCHEMA.validate(stored(*read_binary(SENT | headers, body))[0])


def test_events_are_packed_like_other_messages() -> None:
    new = [read(EVENT | {"id": str(n), "partitionkey": f"k{n % 3}"}) for n in range(9)]
    packed = messages.pack(new, 4, 0, TopicSettings(message_bytes_max=1_000))
    assert sum(block.read_header(entry.block).count for entry in packed.blocks) == 9
    assert all(isinstance(entry, NewBlock) for entry in packed.blocks)
