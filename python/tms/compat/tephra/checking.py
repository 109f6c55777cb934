"""Checks that bytes are one Thrift message, before anything reads them: thriftpy2 trusts lengths
and reads beyond a short buffer.

    message   strict  80 01 00 type · name length 4 · name · sequence 4 · struct
              older   name length 4 · name · type 1 · sequence 4 · struct
    struct    fields: type 1 · number 2 · value …, then 00
    values    bool, byte 1 · i16 2 · i32 4 · i64, double 8 · string: length 4, bytes · struct
              list, set: type 1 · count 4 · values · map: type 1 · type 1 · count 4 · pairs

Invariants

* The bytes cover every length and count, and nothing follows the struct.
* Nesting is bounded, and so is the number of elements that are visited.
"""

from tms.errors import Malformed

DEPTH_MAX = 16
ELEMENTS_MAX = 2_000_000
NAME_BYTES_MAX = 256
_VERSION, _VERSION_MASK = 0x8001_0000, 0xFFFF_0000
_CALL, _ONEWAY = 1, 4
_STOP, _STRING, _STRUCT, _MAP, _SET, _LIST = 0, 11, 12, 13, 14, 15
_SIZES = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}


def check_message(raw: bytes) -> None:
    """Raises `Malformed` unless these bytes are one call."""
    walk = _Walk(raw)
    first = walk.number()
    if first & 0x8000_0000:
        if first & _VERSION_MASK != _VERSION:
            raise _malformed("another version")
        kind = first & 0xFF
        walk.skip(walk.length(NAME_BYTES_MAX))
    else:
        if first > NAME_BYTES_MAX:
            raise _malformed("a long name")
        walk.skip(first)
        kind = walk.byte()
    if kind not in (_CALL, _ONEWAY):
        raise _malformed("no call")
    walk.skip(4)
    walk.value(_STRUCT, DEPTH_MAX)
    if walk.at != len(raw):
        raise _malformed("bytes after the message")


class _Walk:
    """A cursor in the bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._elements = ELEMENTS_MAX
        self.at = 0

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._raw):
            raise _malformed("it is cut off")

    def byte(self) -> int:
        self.skip(1)
        return self._raw[self.at - 1]

    def number(self) -> int:
        self.skip(4)
        return int.from_bytes(self._raw[self.at - 4 : self.at], "big")

    def length(self, most: int) -> int:
        size = self.number()
        if size > most:
            raise _malformed("a length")
        return size

    def value(self, kind: int, depth: int) -> None:
        if (size := _SIZES.get(kind)) is not None:
            self.skip(size)
        elif kind == _STRING:
            self.skip(self.number())
        elif depth == 0:
            raise _malformed("nested too deeply")
        elif kind == _STRUCT:
            while (field := self.byte()) != _STOP:
                self._count(1)
                self.skip(2)
                self.value(field, depth - 1)
        elif kind in (_LIST, _SET):
            self._values((self.byte(),), depth - 1)
        elif kind == _MAP:
            self._values((self.byte(), self.byte()), depth - 1)
        else:
            raise _malformed("an unknown type")

    def _values(self, kinds: tuple[int, ...], depth: int) -> None:
        count = self.number()
        sizes = [_SIZES.get(kind, 0) for kind in kinds]
        if all(sizes):
            self.skip(count * sum(sizes))
            return
        self._count(count)
        for _ in range(count):
            for kind in kinds:
                self.value(kind, depth)

    def _count(self, elements: int) -> None:
        self._elements -= elements
        if self._elements < 0:
            raise _malformed("too many elements")


def _malformed(what: str) -> Malformed:
    return Malformed(f"These bytes are no Thrift message ({what}).")
