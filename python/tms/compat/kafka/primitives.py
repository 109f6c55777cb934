"""The primitive types of Kafka's protocol: what the compiled readers and writers of `codec` call.

    varint   7 bits a byte, the lowest first; the highest bit of a byte says that more follow
    plain    lengths of 2 (strings) or 4 bytes, -1 for null
    compact  lengths as varints, one more than they are, 0 for null

A reader takes the bytes and an offset, and returns a value and the offset behind it. A `size` is
None for null.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from tms.errors import Malformed
from tms.model.message import Buffer

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_VARINT_BYTES = 5


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = byte & 127
    shift = 7
    for place in range(at + 1, at + _VARINT_BYTES):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise Malformed("A length in a message of Kafka's protocol has more than 5 bytes.")


def packed_varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- reading ---------------------------------------------------------------------------------------


def require(size: int | None) -> None:
    """Raise `Malformed` for null where there is none."""
    if size is None:
        raise Malformed("A message of Kafka's protocol has null in a field that is never null.")


def require_left(data: bytes, end: int) -> None:
    """Raise `Malformed` if the bytes end before."""
    if end > len(data):
        raise Malformed(
            f"A message of Kafka's protocol ends at byte {len(data)}, inside a field that ends at "
            f"{end}."
        )


def plain_string_size(data: bytes, at: int) -> tuple[int | None, int]:
    (size,) = _SHORT.unpack_from(data, at)
    return _size(size, size), at + 2


def plain_bytes_size(data: bytes, at: int) -> tuple[int | None, int]:
    (size,) = _INT.unpack_from(data, at)
    return _size(size, size), at + 4


def compact_size(data: bytes, at: int) -> tuple[int | None, int]:
    size, at = varint(data, at)
    return (size - 1 if size else None), at


def plain_count(data: bytes, at: int, room: list[int]) -> tuple[int | None, int]:
    (count,) = _INT.unpack_from(data, at)
    return _counted(_size(count, count), data, at + 4, room), at + 4


def compact_count(data: bytes, at: int, room: list[int]) -> tuple[int | None, int]:
    count, at = compact_size(data, at)
    return _counted(count, data, at, room), at


def string(data: bytes, at: int, size: int | None) -> tuple[str | None, int]:
    if size is None:
        return None, at
    end = at + size
    require_left(data, end)
    return str(data[at:end], "utf-8"), end


def sized_bytes(data: bytes, at: int, size: int | None) -> tuple[bytes | None, int]:
    if size is None:
        return None, at
    end = at + size
    require_left(data, end)
    return data[at:end], end


def records(data: bytes, at: int, size: int | None) -> tuple[memoryview | None, int]:
    """Batches of records: a view of the message."""
    if size is None:
        return None, at
    end = at + size
    require_left(data, end)
    return memoryview(data)[at:end], end


def numbers(data: bytes, at: int, count: int | None, letter: str) -> tuple[Any, int]:
    if count is None:
        return None, at
    layout = struct.Struct(f">{letter}")
    end = at + count * layout.size
    require_left(data, end)
    return [one for (one,) in layout.iter_unpack(data[at:end])], end


def strings(
    data: bytes,
    at: int,
    count: int | None,
    size_of: Callable[[bytes, int], tuple[int | None, int]],
) -> tuple[Any, int]:
    if count is None:
        return None, at
    found = []
    for _ in range(count):
        size, at = size_of(data, at)
        require(size)
        one, at = string(data, at, size)
        found.append(one)
    return found, at


def _size(size: int, given: int) -> int | None:
    if given < -1:
        raise Malformed(f"A message of Kafka's protocol has a length of {given}.")
    return None if given < 0 else size


def _counted(count: int | None, data: bytes, at: int, room: list[int]) -> int | None:
    """The count, once its elements fit the bytes that are left and what a message may have."""
    if count is not None:
        room[0] -= count
        if count > len(data) - at or room[0] < 0:
            raise Malformed(
                f"A message of Kafka's protocol has an array of {count} elements, and "
                f"{len(data) - at} bytes are left: so many are not read."
            )
    return count


# -- writing ---------------------------------------------------------------------------------------


def plain_string_sized(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def compact_string_sized(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return packed_varint(len(encoded) + 1) + encoded


def plain_counted(items: Sequence[Any] | None) -> bytes:
    return _INT.pack(-1 if items is None else len(items))


def compact_counted(items: Sequence[Any] | None) -> bytes:
    return b"\0" if items is None else packed_varint(len(items) + 1)


def pack_numbers(items: Sequence[Any], letter: str) -> bytes:
    return struct.pack(f">{len(items)}{letter}", *items)


def put_bytes(out: list[Buffer], value: Any, compact: bool) -> None:
    """Append bytes, or a list of chunks, with their length."""
    if value is None:
        out.append(b"\0" if compact else b"\xff\xff\xff\xff")
        return
    chunks = value if isinstance(value, list) else [value]
    size = sum(map(len, chunks))
    out.append(packed_varint(size + 1) if compact else _INT.pack(size))
    out += chunks


def put_tags(out: list[Buffer], tags: Sequence[tuple[int, list[Buffer]]]) -> None:
    """Append tagged fields, in the order of their tags."""
    out.append(packed_varint(len(tags)))
    for tag, chunks in tags:
        out.append(packed_varint(tag) + packed_varint(sum(map(len, chunks))))
        out += chunks
