"""Positions of groups: their state, their preconditions, and the entries of their journal."""

import pytest

from tms.errors import Conflict, DataCorrupt
from tms.groups.positions import Positions, decode_entry, encode_key
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange, PositionKey

A, B = TopicName("default", "a"), TopicName("other", "b")
KEY, NEXT = PositionKey("g", A, 0), PositionKey("g", A, 1)


def test_each_partition_of_each_group_has_a_position_of_its_own() -> None:
    positions = Positions()
    for number, key in enumerate((KEY, NEXT, PositionKey("h", A, 0), PositionKey("g", B, 0))):
        positions.apply(key, Position.offset(number))
    assert positions.of("g", A) == {0: Position.offset(0), 1: Position.offset(1)}
    assert positions.of_key(NEXT) == Position.offset(1)
    assert positions.of_key(PositionKey("g", A, 2)) is None
    assert positions.of_key(PositionKey("nobody", A, 0)) is None
    assert positions.groups() == [("g", A), ("g", B), ("h", A)]
    assert dict(positions.all())[PositionKey("g", B, 0)] == Position.offset(3)


def test_a_position_that_is_forgotten_leaves_the_others_and_at_last_the_group() -> None:
    positions = Positions()
    positions.apply(KEY, Position.offset(1))
    positions.apply(NEXT, Position.offset(2))
    positions.apply(KEY, None)
    positions.apply(KEY, None)  # a repeated entry of the journal
    assert positions.of("g", A) == {1: Position.offset(2)}
    positions.apply(NEXT, None)
    assert positions.groups() == [] and positions.of("g", A) == {}


@pytest.mark.parametrize(("stands_at", "text"), [(Position.offset(5), "offset:5"), (None, "")])
def test_a_change_that_expects_another_position_is_refused_and_told_the_present_one(
    stands_at: Position | None, text: str
) -> None:
    positions = Positions()
    positions.apply(NEXT, Position.offset(9))
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
    assert decode_entry(encode_key(key), b"offset:7") == (key, Position.offset(7))
    assert decode_entry(encode_key(key), None) == (key, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"offset:1"),
        (b"g/default:a", b"offset:1"),
        (b"g/default:a/x", b"offset:1"),
        (b"g/default:a/0", b"nonsense"),
        (b"\xff/default:a/0", None),
    ],
)
def test_a_damaged_entry_is_an_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(DataCorrupt):
        decode_entry(key, value)
