"""The codec of Kafka's messages: every version of every message, and bytes that are no message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.compat.kafka import codec
from tms.compat.kafka.codec import ELEMENTS_MAX, NO_ID, Definition, MessageField
from tms.compat.kafka.primitives import packed_varint, varint
from tms.errors import Malformed

EVERY = [
    (name, version)
    for name, one in codec.definitions().items()
    for version in range(one.versions.first, one.versions.last + 1)
]
INTEGERS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}


def written(name: str, version: int, message: Any) -> bytes:
    return b"".join(bytes(chunk) for chunk in codec.writer(name, version)(message))


def values(field: MessageField, made: Any, version: int) -> st.SearchStrategy[Any]:
    """Values of a field in a version."""
    kind = field.element
    one: st.SearchStrategy[Any]
    if kind in INTEGERS:
        bits = INTEGERS[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        one = st.integers(low, low + (1 << bits) - 1)
    elif kind == "bool":
        one = st.booleans()
    elif kind == "float64":
        one = st.floats(allow_nan=False)
    elif kind == "string":
        one = st.text(max_size=5)
    elif kind == "uuid":
        one = st.binary(min_size=16, max_size=16)
    elif kind in ("bytes", "records"):
        one = st.binary(max_size=5)
    else:
        one = messages(getattr(made, kind), field.parts, version)
    if field.is_array:
        one = st.lists(one, max_size=3)
    return st.none() | one if version in field.nullable else one


def messages(made: Any, fields: tuple[MessageField, ...], version: int) -> st.SearchStrategy[Any]:
    """Messages with random values in the fields of a version."""
    here = {one.name: values(one, made, version) for one in fields if version in one.versions}
    return st.builds(made, **here)


@given(st.data())
def test_every_version_of_every_message_is_read_as_it_was_written(data: st.DataObject) -> None:
    name, version = data.draw(st.sampled_from(EVERY))
    made, definition = codec.class_of(name), codec.definitions()[name]
    message = data.draw(messages(made, definition.fields, version))
    raw = written(name, version, message)
    assert codec.reader(name, version)(raw, 0) == message
    assert codec.reader(name, version)(b"head" + raw + b"tail", 4) == message, "as librdkafka sends"


def test_fields_that_a_version_lacks_have_their_defaults() -> None:
    for name, version in EVERY:
        fresh = codec.class_of(name)()
        assert codec.reader(name, version)(written(name, version, fresh), 0) == fresh


# From a capture of kafka-clients 4.1 and librdkafka: what others write is what is read here.
CAPTURED = [
    (
        "ApiVersionsRequest",
        3,
        "12617061636865206b61666b61206a61766106342e312e3100",
        {"client_software_name": "apache kafka java", "client_software_version": "4.1.1"},
    ),
    ("MetadataRequest", 1, "ffffffff", {"topics": None}),
    ("MetadataRequest", 13, "00000000010000", {"topics": None, "allow_auto_topic_creation": False}),
    (
        "HeartbeatRequest",
        4,
        "026700000007026d0000",
        {"group_id": "g", "generation_id": 7, "member_id": "m", "group_instance_id": None},
    ),
]


@pytest.mark.parametrize(("name", "version", "raw", "fields"), CAPTURED)
def test_bytes_of_clients(name: str, version: int, raw: str, fields: dict[str, Any]) -> None:
    message = codec.reader(name, version)(bytes.fromhex(raw), 0)
    assert {field: getattr(message, field) for field in fields} == fields


@given(st.sampled_from(EVERY), st.binary(max_size=60))
def test_bytes_that_are_no_message_are_malformed(one: tuple[str, int], raw: bytes) -> None:
    name, version = one
    try:
        message = codec.reader(name, version)(raw, 0)
    except Malformed:
        return
    assert type(message).__name__ == name


@given(st.data())
def test_a_message_that_is_cut_off_is_malformed(data: st.DataObject) -> None:
    name, version = data.draw(st.sampled_from([("MetadataRequest", 12), ("FetchRequest", 12)]))
    made, definition = codec.class_of(name), codec.definitions()[name]
    raw = written(name, version, data.draw(messages(made, definition.fields, version)))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(Malformed):
        codec.reader(name, version)(raw[:cut], 0)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        (12, b"\xff\xff\xff\xff\x0f"),  # 2**32 - 2 topics in a compact array
        (12, b"\xff\xff\xff\xff\x07" + bytes(10)),
        (1, b"\x7f\xff\xff\xff" + bytes(10)),
        (1, b"\xff\xff\xff\xfe"),  # a length of -2
        (12, b"\x80" * 20),  # a length that never ends
        (12, packed_varint(ELEMENTS_MAX + 2) + bytes(3 * ELEMENTS_MAX)),
    ],
)
def test_a_count_is_held_against_the_bytes_that_are_left(version: int, raw: bytes) -> None:
    with pytest.raises(Malformed):
        codec.reader("MetadataRequest", version)(raw, 0)


def test_a_message_has_a_bounded_number_of_elements() -> None:
    read = codec.reader("MetadataRequest", 1)
    most = ELEMENTS_MAX.to_bytes(4, "big") + bytes(2 * ELEMENTS_MAX)  # empty names
    assert len(read(most, 0).topics) == ELEMENTS_MAX
    with pytest.raises(Malformed, match="elements"):
        read((ELEMENTS_MAX + 1).to_bytes(4, "big") + bytes(2 * ELEMENTS_MAX + 2), 0)


def test_null_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(Malformed, match="null"):
        codec.reader("HeartbeatRequest", 0)(b"\xff\xff" + bytes(6), 0)


def test_unknown_tagged_fields_are_skipped_and_must_fit() -> None:
    read = codec.reader("HeartbeatRequest", 4)
    raw = bytes.fromhex("026700000007026d00")
    assert read(raw + b"\x01\x63\x02ab", 0).group_id == "g"
    with pytest.raises(Malformed):
        read(raw + b"\x01\x63\x03ab", 0)


@given(st.integers(0, 2**32 - 1))
def test_varints(value: int) -> None:
    raw = packed_varint(value)
    assert varint(b"x" + raw, 1) == (value, 1 + len(raw))


def test_a_default_is_not_shared_between_messages() -> None:
    made = codec.class_of("MetadataResponse")
    made().topics.append("changed")
    assert made().topics == []
    assert codec.class_of("FetchRequest").FetchTopic().topic_id == NO_ID


def test_definitions_are_those_of_requests_and_responses_alike() -> None:
    by_key: dict[int, list[Definition]] = {}
    for one in codec.definitions().values():
        by_key.setdefault(one.key, []).append(one)
    for request, response in by_key.values():
        assert (request.versions, request.flexible) == (response.versions, response.flexible)
