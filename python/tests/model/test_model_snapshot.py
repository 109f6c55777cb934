"""Snapshots: Tephra's visibility and Tephra's bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.errors import Malformed
from tms.model.snapshot import (
    Fate,
    Snapshot,
    TransactionType,
    VisibilityLevel,
    decode_snapshot,
    encode_snapshot,
)

SNAPSHOT = Snapshot(
    transaction_id=50,
    read_pointer=40,
    invalid=(10, 35),
    in_progress=(20, 30, 45),
    first_short=20,
    write_pointer=52,
    checkpoints=(51, 52),
)
POINTERS = st.integers(1, 2**62)


@pytest.mark.parametrize(
    ("pointer", "fate"),
    [
        (5, Fate.VISIBLE),
        (10, Fate.SKIPPED),
        (20, Fate.OPEN),
        (35, Fate.SKIPPED),
        (40, Fate.VISIBLE),
        (41, Fate.OPEN),  # above the read pointer
        (45, Fate.OPEN),
        (50, Fate.VISIBLE),  # its own
        (51, Fate.VISIBLE),
        (52, Fate.VISIBLE),
        (53, Fate.OPEN),
    ],
)
def test_what_a_transaction_does_with_a_message(pointer: int, fate: Fate) -> None:
    assert SNAPSHOT.fate(pointer) is fate


def test_a_level_can_hide_what_the_transaction_writes_now() -> None:
    raw = bytearray(encode_snapshot(SNAPSHOT))
    raw[-2] = VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
    hidden = decode_snapshot(raw)
    assert [hidden.is_visible(pointer) for pointer in (50, 51, 52)] == [True, True, False]


def test_the_bytes_are_those_of_a_thrift_struct() -> None:
    made = encode_snapshot(Snapshot(7, 5, (3,), (), write_pointer=7))
    assert made == b"".join(
        (
            struct.pack(">BHq", 10, 1, 7),
            struct.pack(">BHq", 10, 2, 5),
            struct.pack(">BHBIq", 15, 3, 10, 1, 3),
            struct.pack(">BHBI", 15, 4, 10, 0),
            struct.pack(">BHq", 10, 5, 2**63 - 1),
            struct.pack(">BHi", 8, 6, 1),
            struct.pack(">BHq", 10, 7, 7),
            struct.pack(">BHBI", 15, 8, 10, 0),
            struct.pack(">BHi", 8, 9, 1),
            b"\0",
        )
    )


@given(
    st.builds(
        Snapshot,
        POINTERS,
        POINTERS,
        st.lists(POINTERS, unique=True).map(lambda ids: tuple(sorted(ids))),
        st.lists(POINTERS, unique=True).map(lambda ids: tuple(sorted(ids))),
        POINTERS,
        st.sampled_from(TransactionType),
        POINTERS,
        st.lists(POINTERS, unique=True).map(lambda ids: tuple(sorted(ids))),
        st.sampled_from(VisibilityLevel),
    )
)
def test_what_was_encoded_is_decoded(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_every_cut_is_refused_and_no_flipped_bit_does_worse() -> None:
    raw = encode_snapshot(SNAPSHOT)
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            decode_snapshot(raw[:end])
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        try:
            decode_snapshot(flipped)
        except Malformed:
            continue


def test_a_list_that_claims_too_much_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(Malformed):
        decode_snapshot(struct.pack(">BHBI", 15, 3, 10, 2**32 - 1))
