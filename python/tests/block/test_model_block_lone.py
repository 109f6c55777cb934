"""Single messages: their bytes equal those of any other block, and no other block is taken for
one."""

from collections.abc import Callable

import pytest

from tms.block import check, decode, encode, unpack_lone
from tms.block.header import HEADER_BYTES
from tms.block.lone import LONE_BYTES_MAX, lone_bytes
from tms.block.packing import pack
from tms.errors import TooLarge

Test = Callable[..., None]
VALUES = [b"", b"v", b"seven b", b"eight by", b"v" * 1024]
KEYS = [None, b"", b"k", b"key of 17 bytes.."]


def every_message(test: Test) -> Test:
    """Run a test with each value and each key."""
    of_each_key = pytest.mark.parametrize("key", KEYS)
    return of_each_key(pytest.mark.parametrize("value", VALUES)(test))


def lone(value: bytes, key: bytes | None) -> bytearray:
    return encode([value], None if key is None else [key], producer_id=7, producer_sequence=9)


@every_message
def test_a_lone_message_is_packed_like_any_other(value: bytes, key: bytes | None) -> None:
    keys = None if key is None else [key]
    block = lone(value, key)
    assert block[HEADER_BYTES:] == pack([value], keys, None, HEADER_BYTES)[HEADER_BYTES:]
    assert lone_bytes(block) == len(value) + len(key or b"")
    assert (decode(block).values(), decode(block).keys()) == ([value], [key])


@every_message
def test_only_a_flipped_bit_of_key_or_value_leaves_a_lone_message(
    value: bytes, key: bytes | None
) -> None:
    block = lone(value, key)
    left = 0
    for bit in range(8 * HEADER_BYTES, 8 * len(block)):
        block[bit // 8] ^= 1 << bit % 8
        left += lone_bytes(block) is not None
        block[bit // 8] ^= 1 << bit % 8
    assert left == 8 * (len(value) + len(key or b""))


@pytest.mark.parametrize("key", KEYS)
def test_a_lone_message_that_was_cut_is_none(key: bytes | None) -> None:
    block = lone(b"value", key)
    assert all(lone_bytes(memoryview(block)[:end]) is None for end in range(len(block)))


@pytest.mark.parametrize("size", [LONE_BYTES_MAX, LONE_BYTES_MAX + 1])
def test_a_lone_message_of_any_size_is_checked(size: int) -> None:
    block = lone(bytes(size), None)
    assert check(block, message_bytes_max=size, decompressed_bytes_max=1 << 20).count == 1
    with pytest.raises(TooLarge):
        check(block, message_bytes_max=size - 1, decompressed_bytes_max=1 << 20)


@every_message
def test_a_lone_message_is_unpacked_as_it_was_packed_and_never_when_it_is_damaged(
    value: bytes, key: bytes | None
) -> None:
    block = lone(value, key)
    assert unpack_lone(memoryview(bytes(block))) == (key, value)
    for at in (0, 5, *range(HEADER_BYTES, len(block))):
        broken = bytearray(block)
        broken[at] ^= 1
        assert unpack_lone(broken) is None or at == 5


def test_other_blocks_are_no_lone_messages_to_unpack() -> None:
    assert unpack_lone(encode([b"1", b"2"])) is None
    assert unpack_lone(encode([b"1"], None, [{"h": b"x"}])) is None
    assert unpack_lone(encode([None])) is None
