"""The bodies of CDAP's messaging protocol: raw Avro data, without container or fingerprint.

    PublishRequest   { transactionWritePointer: ["long","null"], messages: array<bytes> }
    PublishResponse  { transactionWritePointer: ["long","null"], startTimestamp long,
                       startSequenceId int, endTimestamp long, endSequenceId int }
    ConsumeRequest   { startFrom: ["bytes","long","null"], inclusive boolean,
                       limit: ["int","null"], transaction: ["bytes","null"] }
    ConsumeResponse  array<{ id: bytes, payload: bytes }>

A long is zig-zag and base 128, least significant group first; bytes have their length before them;
an array is blocks of a count and that many items, a block of 0 ends it. Null is the last branch of
a union. Blocks with a negative count, which no client of CDAP writes, are refused.

Invariants

* Nothing is allocated for a length or count before that many bytes are known to be there, and a
  request has at most `MESSAGES_MAX` messages.
* A body is read to its end: what follows is `Malformed`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tms.errors import Malformed
from tms.model.log import Buffer

END = b"\x00"  # of an array
MESSAGES_MAX = 1 << 20
_VARINT_BYTES_MAX = 10
_INT_MAX, _INT_MIN = 2**31 - 1, -(2**31)


class PublishRequest(NamedTuple):
    """Messages, and the transaction that they belong to."""

    write_pointer: int | None
    payloads: list[Buffer]


class RollbackDetail(NamedTuple):
    """Where a transaction's messages stand, both ends included: the answer to a publish in it."""

    write_pointer: int | None
    start_ms: int
    start_sequence: int
    end_ms: int
    end_sequence: int


class ConsumeRequest(NamedTuple):
    """Where to begin: at the 20 bytes of an id, at a time, or at the beginning."""

    start: bytes | int | None
    inclusive: bool
    limit: int | None
    transaction: bytes | None


class _Reader:
    """Reads from the front of a body."""

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def long(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            if not self.left:
                raise _broken("ends within a number")
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return (value >> 1) ^ -(value & 1)
        raise _broken("has a number of more than 64 bits")

    def number(self) -> int:
        value = self.long()
        if not _INT_MIN <= value <= _INT_MAX:
            raise _broken("has a number of more than 32 bits where 32 are meant")
        return value

    def data(self) -> memoryview:
        size = self.long()
        if not 0 <= size <= self.left:
            raise _broken(f"says {size} bytes where {self.left} are left")
        self._at += size
        return self._view[self._at - size : self._at]

    def boolean(self) -> bool:
        if not self.left:
            raise _broken("ends before a boolean")
        self._at += 1
        value = self._view[self._at - 1]
        if value > 1:
            raise _broken(f"has {value} for a boolean")
        return bool(value)

    def branch(self, branches: int) -> int:
        chosen = self.long()
        if not 0 <= chosen < branches:
            raise _broken(f"chooses branch {chosen} of a union of {branches}")
        return chosen

    def optional_long(self) -> int | None:
        return None if self.branch(2) else self.long()

    def array(self) -> list[memoryview]:
        found: list[memoryview] = []
        while count := self.long():
            if not 0 < count <= min(self.left, MESSAGES_MAX - len(found)):
                raise _broken(
                    f"says {count} messages where {self.left} bytes are left and {MESSAGES_MAX} "
                    "are allowed"
                )
            found += [self.data() for _ in range(count)]
        return found

    def end(self) -> None:
        if self.left:
            raise _broken(f"has {self.left} bytes behind its end")


def decode_publish(body: Buffer) -> PublishRequest:
    """A body of publish or store. Raises `Malformed`."""
    reader = _Reader(body)
    request = PublishRequest(reader.optional_long(), list(reader.array()))
    reader.end()
    return request


def decode_rollback(body: Buffer) -> RollbackDetail:
    """A body of rollback. Raises `Malformed`."""
    reader = _Reader(body)
    detail = RollbackDetail(
        reader.optional_long(), reader.long(), reader.number(), reader.long(), reader.number()
    )
    reader.end()
    return detail


def decode_consume(body: Buffer) -> ConsumeRequest:
    """A body of poll. Raises `Malformed`."""
    reader = _Reader(body)
    start: bytes | int | None = None
    chosen = reader.branch(3)
    if chosen == 0:
        start = bytes(reader.data())
    elif chosen == 1:
        start = reader.long()
    inclusive = reader.boolean()
    limit = None if reader.branch(2) else reader.number()
    transaction = None if reader.branch(2) else bytes(reader.data())
    reader.end()
    return ConsumeRequest(start, inclusive, limit, transaction)


def encode_publish(request: PublishRequest) -> bytes:
    """A body of publish or store."""
    parts: list[Buffer] = [_optional(request.write_pointer)]
    if request.payloads:
        parts.append(long(len(request.payloads)))
        for payload in request.payloads:
            parts += (long(len(payload)), payload)
    parts.append(END)
    return b"".join(parts)


def encode_rollback(detail: RollbackDetail) -> bytes:
    """The answer to a publish in a transaction."""
    return _optional(detail.write_pointer) + b"".join(map(long, detail[1:]))


def encode_consume(request: ConsumeRequest) -> bytes:
    """A body of poll."""
    if isinstance(request.start, bytes):
        start = b"\x00" + _bytes(request.start)
    else:
        start = b"\x04" if request.start is None else b"\x02" + long(request.start)
    transaction = b"\x02" if request.transaction is None else b"\x00" + _bytes(request.transaction)
    return b"".join((start, bytes((request.inclusive,)), _optional(request.limit), transaction))


def encode_messages(messages: Sequence[tuple[bytes, Buffer]]) -> bytes:
    """One block of the array that answers a poll, without the array's end."""
    parts: list[Buffer] = [long(len(messages))]
    for id, payload in messages:
        parts += (_ID_LENGTH, id, long(len(payload)), payload)
    return b"".join(parts)


def decode_messages(body: Buffer) -> list[tuple[bytes, bytes]]:
    """The answer to a poll. Raises `Malformed`."""
    reader = _Reader(body)
    found: list[tuple[bytes, bytes]] = []
    while count := reader.long():
        if not 0 < count <= reader.left:
            raise _broken(f"says {count} messages where {reader.left} bytes are left")
        found += [(bytes(reader.data()), bytes(reader.data())) for _ in range(count)]
    reader.end()
    return found


def long(value: int) -> bytes:
    """A number as Avro writes it."""
    left = (value << 1) ^ (value >> 63)
    if left < 0x80:
        return bytes((left,))
    written = bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


_ID_LENGTH = long(20)


def _bytes(value: bytes) -> bytes:
    return long(len(value)) + value


def _optional(value: int | None) -> bytes:
    return b"\x02" if value is None else b"\x00" + long(value)


def _broken(what: str) -> Malformed:
    return Malformed(f"The body is not the Avro that is meant here: it {what}.")
