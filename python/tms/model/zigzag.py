"""Numbers of variable length, as Avro and Tephra write them: zig-zag, 7 bits in a byte, the least
significant first; the highest bit of a byte says that another one follows.
"""

from tms.model.message import Buffer


def zigzag(value: int) -> bytes:
    """The bytes of a number."""
    left = (value << 1) ^ (value >> 63)
    written = bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def read_zigzag(raw: Buffer, at: int) -> tuple[int, int]:
    """The number at an index, and the index behind it. Raises `IndexError` if the bytes end, and
    `OverflowError` for more than 64 bits."""
    value = 0
    for shift in range(0, 64, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), at
    raise OverflowError("a number of more than 64 bits")
