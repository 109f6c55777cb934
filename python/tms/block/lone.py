"""A lone message: a block of one message without headers, whose publisher waits for the answer.

All other bytes of such a block depend only on the lengths of key and value, so they are made once
for each pair of lengths: packing joins five pieces, checking compares three.

    before: header, metadata, ends of the key │ key │ between: ends of the value │ value │ behind

Invariants

* The bytes of `pack_lone` equal those of `packing.pack`.
* A block that `lone_bytes` accepts equals one of `pack_lone` except for its header: nothing in its
  body can be wrong.
"""

import struct
from functools import lru_cache

from tms.block.arrow import padded
from tms.block.header import HEADER_BYTES
from tms.block.packing import pack
from tms.model.message import Buffer

LONE_BYTES_MAX = 64 << 10  # of key and of value; above, joining takes most of the time
LONES_CACHED_MAX = 4_096  # at most 3 MB
_NO_KEY = -1
_ENDS_BYTES = 8  # the begin and the end of a cell
_HEADERS_BYTES = 3 * _ENDS_BYTES  # of an empty map, its names and their values
_SIZES = struct.Struct("<128xq40xq160xq80x")  # in the metadata: bytes of key, of value, null keys


def pack_lone(value: bytes | None, key: bytes | None) -> bytearray | None:
    """The block of this message, its header still zero; None if the message is too large."""
    if type(value) is not bytes or len(value) > LONE_BYTES_MAX:
        return None
    if key is None:
        before, between, behind = _pieces(_NO_KEY, len(value))
        return bytearray().join((before, between, value, behind))
    if type(key) is not bytes or len(key) > LONE_BYTES_MAX:
        return None
    before, between, behind = _pieces(len(key), len(value))
    return bytearray().join((before, key, between, value, behind))


def lone_bytes(block: Buffer) -> int | None:
    """The size of the message in a lone message's block, None for any other block."""
    if len(block) < HEADER_BYTES + _SIZES.size:
        return None
    key_bytes, value_bytes, null_keys = _SIZES.unpack_from(block, HEADER_BYTES)
    if not (0 <= key_bytes <= LONE_BYTES_MAX and 0 <= value_bytes <= LONE_BYTES_MAX):
        return None
    before, between, behind = _pieces(_NO_KEY if null_keys else key_bytes, value_bytes)
    between_at = len(before) + key_bytes
    value_at = between_at + len(between)
    behind_at = value_at + value_bytes
    if (
        len(block) != behind_at + len(behind)
        or block[HEADER_BYTES : len(before)] != before[HEADER_BYTES:]
        or block[between_at:value_at] != between
        or block[behind_at:] != behind
    ):
        return None
    return int(key_bytes + value_bytes)


def lone_cells(block: Buffer) -> tuple[bytes | None, bytes] | None:
    """Key and value of the message in a lone message's block, None for any other block. The
    checksum is not verified."""
    if lone_bytes(block) is None:
        return None
    key_bytes, value_bytes, null_keys = _SIZES.unpack_from(block, HEADER_BYTES)
    before, between, _ = _pieces(_NO_KEY if null_keys else key_bytes, value_bytes)
    value_at = len(before) + key_bytes + len(between)
    value = bytes(block[value_at : value_at + value_bytes])
    return (None if null_keys else bytes(block[len(before) : len(before) + key_bytes])), value


@lru_cache(LONES_CACHED_MAX)
def _pieces(key_bytes: int, value_bytes: int) -> tuple[bytes, bytes, bytes]:
    """The bytes before the key, between key and value, and behind the value."""
    keys = None if key_bytes == _NO_KEY else [bytes(key_bytes)]
    block = bytes(pack([bytes(value_bytes)], keys, None, HEADER_BYTES))
    value_at = len(block) - _HEADERS_BYTES - padded(value_bytes)
    key_at = value_at - _ENDS_BYTES - padded(max(0, key_bytes))
    between_at = key_at + max(0, key_bytes)
    return block[:key_at], block[between_at:value_at], block[value_at + value_bytes :]
