"""Positions of groups: their state, their preconditions, and the entries of their journal."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.errors import Conflict, DataCorrupt
from tms.groups.positions import Positions, decode_entry, encode_key, encode_value
from tms.model.position import OFFSET_MAX, Position
from tms.model.topic import TopicName
from tms.model.transaction import (
    LEADER_EPOCH_MAX,
    METADATA_CHARS_MAX,
    CommittedPosition,
    PositionChange,
    PositionKey,
)

A, B = TopicName("default", "a"), TopicName("other", "b")
KEY, NEXT = PositionKey("g", A, 0), PositionKey("g", A, 1)


def at(offset: int, metadata: str = "", leader_epoch: int = -1) -> CommittedPosition:
    return CommittedPosition(Position.offset(offset), metadata, leader_epoch)


def test_each_partition_of_each_group_has_a_position_of_its_own() -> None:
    positions = Positions()
    for number, key in enumerate((KEY, NEXT, PositionKey("h", A, 0), PositionKey("g", B, 0))):
        positions.apply(key, at(number))
    assert positions.of("g", A) == {0: at(0), 1: at(1)}
    assert positions.of_key(NEXT) == at(1)
    assert positions.of_key(PositionKey("g", A, 2)) is None
    assert positions.of_key(PositionKey("nobody", A, 0)) is None
    assert sorted(positions.groups()) == [("g", A), ("g", B), ("h", A)]
    assert positions.topics_of("g") == [A, B] and positions.topics_of("nobody") == []
    assert dict(positions.all())[PositionKey("g", B, 0)] == at(3)


def test_a_position_that_is_forgotten_leaves_the_others_and_at_last_the_group() -> None:
    positions = Positions()
    positions.apply(KEY, at(1))
    positions.apply(NEXT, at(2))
    positions.apply(KEY, None)
    positions.apply(KEY, None)  # a repeated entry of the journal
    assert positions.of("g", A) == {1: at(2)}
    positions.apply(NEXT, None)
    assert positions.groups() == [] and positions.of("g", A) == {}
    assert positions._positions == {}  # nothing is kept for a group without positions


@pytest.mark.parametrize(
    ("stands_at", "text"), [(at(5), "offset:5"), (at(5, "x", 7), "offset:5"), (None, "")]
)
def test_a_change_that_expects_another_position_is_refused_and_told_the_present_one(
    stands_at: CommittedPosition | None, text: str
) -> None:
    positions = Positions()
    positions.apply(NEXT, at(9))
    if stands_at is not None:
        positions.apply(KEY, stands_at)
    positions.check([PositionChange(KEY, Position.offset(6), text)])
    positions.check([PositionChange(KEY, Position.offset(6), None)])
    with pytest.raises(Conflict) as caught:
        positions.check(
            [
                PositionChange(NEXT, Position.offset(10), None),
                PositionChange(KEY, Position.offset(6), "offset:4"),
            ]
        )
    assert caught.value.details == {
        "group": "g",
        "topic": "a",
        "partition": 0,
        "position": text,
    }


def test_an_entry_of_the_journal_is_read_as_it_was_written() -> None:
    key = PositionKey("teams/west", A, 12)
    assert decode_entry(encode_key(key), b"offset:7") == (key, at(7))
    assert decode_entry(encode_key(key), None) == (key, None)
    assert encode_value(None) is None


def test_a_position_without_metadata_is_stored_as_earlier_releases_do() -> None:
    assert encode_value(at(7)) == b"offset:7"
    assert encode_value(at(7, "x", 5)) == b"\x94\xa1p\xa8offset:7\xa1x\x05"
    assert encode_value(at(7, "", 0)) == b"\x94\xa1p\xa8offset:7\xa0\x00"
    assert encode_value(at(7, "x")) == b"\x94\xa1p\xa8offset:7\xa1x\xff"


@given(
    st.integers(0, OFFSET_MAX),
    st.text(max_size=20),
    st.sampled_from([-1, 0, 127, LEADER_EPOCH_MAX]),
)
def test_an_offset_with_metadata_is_read_as_it_was_written(
    offset: int, metadata: str, leader_epoch: int
) -> None:
    committed = at(offset, metadata, leader_epoch)
    assert decode_entry(encode_key(KEY), encode_value(committed)) == (KEY, committed)


def test_every_truncation_of_a_value_with_metadata_is_damage() -> None:
    value = encode_value(at(7, "some \N{SNOWMAN}", 300)) or b""
    for length in range(len(value)):
        with pytest.raises(DataCorrupt):
            decode_entry(encode_key(KEY), value[:length])


def test_an_element_that_a_later_release_adds_is_skipped() -> None:
    value = msgspec.msgpack.encode(["p", "offset:7", "x", 5, "more"])
    assert decode_entry(encode_key(KEY), value) == (KEY, at(7, "x", 5))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"offset:1"),
        (b"g/default:a", b"offset:1"),
        (b"g/default:a/x", b"offset:1"),
        (b"g/default:a/0", b"nonsense"),
        (b"\xff/default:a/0", None),
        (b"g/default:a/0", b""),
        (b"g/default:a/0", msgspec.msgpack.encode(["q", "offset:1", "x", 5])),
        (b"g/default:a/0", msgspec.msgpack.encode(["p", "nonsense", "x", 5])),
        (b"g/default:a/0", msgspec.msgpack.encode(["p", "offset:1", "x", -2])),
        (b"g/default:a/0", msgspec.msgpack.encode(["p", "offset:1", 5, 5])),
        (
            b"g/default:a/0",
            msgspec.msgpack.encode(["p", "offset:1", "x" * (METADATA_CHARS_MAX + 1), 5]),
        ),
    ],
)
def test_a_damaged_entry_is_an_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(DataCorrupt):
        decode_entry(key, value)
