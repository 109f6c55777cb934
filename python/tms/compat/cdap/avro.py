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
  request has at most `MESSAGES_MAX` messages, which are taken one by one.
* A body is read to its end: what follows is `Malformed`.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from tms.errors import Malformed
from tms.model.ids import ID_BYTES
from tms.model.message import Buffer
from tms.model.zigzag import read_zigzag, zigzag

END = b"\x00"  # of an array
MESSAGES_MAX = 1 << 20
_INT_MAX, _INT_MIN = 2**31 - 1, -(2**31)


class PublishRequest(NamedTuple):
    """Messages, and the transaction that they belong to."""

    write_pointer: int | None
    payloads: Iterable[bytes]


class RollbackDetail(NamedTuple):
    """The range of a transaction's messages, both ends included: the answer to a publish in it."""

    write_pointer: int | None
    start_ms: int
    start_sequence: int
    end_ms: int
    end_sequence: int


class ConsumeRequest(NamedTuple):
    """The start of a poll: the 20 bytes of an id, a time, or the beginning of the topic."""

    start: bytes | int | None
    inclusive: bool
    limit: int | None
    transaction: bytes | None


class AvroReader:
    """Reads from the front of a body."""

    def __init__(self, body: Buffer) -> None:
        self._body = bytes(body)  # whose slices are bytes already
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def long(self) -> int:
        try:
            value, self._at = read_zigzag(self._body, self._at)
        except IndexError as exc:
            raise broken("ends within a number") from exc
        except OverflowError as exc:
            raise broken("has a number of more than 64 bits") from exc
        return value

    def number(self) -> int:
        value = self.long()
        if not _INT_MIN <= value <= _INT_MAX:
            raise broken("has a number of more than 32 bits where 32 are meant")
        return value

    def data(self) -> bytes:
        size = self.long()
        if not 0 <= size <= self.left:
            raise broken(f"says {size} bytes where {self.left} are left")
        self._at += size
        return self._body[self._at - size : self._at]

    def boolean(self) -> bool:
        if not self.left:
            raise broken("ends before a boolean")
        self._at += 1
        value = self._body[self._at - 1]
        if value > 1:
            raise broken(f"has {value} for a boolean")
        return bool(value)

    def branch(self, branches: int) -> int:
        chosen = self.long()
        if not 0 <= chosen < branches:
            raise broken(f"chooses branch {chosen} of a union of {branches}")
        return chosen

    def optional_long(self) -> int | None:
        return None if self.branch(2) else self.long()

    def payloads(self) -> Iterator[bytes]:
        """The messages of a publish, which are its last field."""
        body, end, room = self._body, len(self._body), MESSAGES_MAX
        while count := self.long():
            if not 0 < count <= min(self.left, room):
                raise broken(
                    f"says {count} messages where {self.left} bytes are left and {room} are allowed"
                )
            room -= count
            at = self._at
            for _ in range(count):
                # Nearly all lengths have one or two bytes; others, and wrong ones, go the long way.
                start = size = end
                if at + 1 < end and not (low := body[at]) & 1:
                    if low < 0x80:
                        start, size = at + 1, low >> 1
                    elif (high := body[at + 1]) < 0x80:
                        start, size = at + 2, (low & 0x7F | high << 7) >> 1
                if start + size <= end:
                    at = start + size
                    yield body[start:at]
                else:
                    self._at = at
                    yield self.data()
                    at = self._at
            self._at = at
        self.end()

    def end(self) -> None:
        if self.left:
            raise broken(f"has {self.left} bytes behind its end")


def decode_publish(body: Buffer) -> PublishRequest:
    """A body of publish or store. Raises `Malformed`, also while its payloads are taken, at the
    latest behind the last one."""
    reader = AvroReader(body)
    return PublishRequest(reader.optional_long(), reader.payloads())


def decode_rollback(body: Buffer) -> RollbackDetail:
    """A body of rollback. Raises `Malformed`."""
    reader = AvroReader(body)
    detail = RollbackDetail(
        reader.optional_long(), reader.long(), reader.number(), reader.long(), reader.number()
    )
    reader.end()
    return detail


def decode_consume(body: Buffer) -> ConsumeRequest:
    """A body of poll. Raises `Malformed`."""
    reader = AvroReader(body)
    start: bytes | int | None = None
    chosen = reader.branch(3)
    if chosen == 0:
        start = reader.data()
    elif chosen == 1:
        start = reader.long()
    inclusive = reader.boolean()
    limit = None if reader.branch(2) else reader.number()
    transaction = None if reader.branch(2) else reader.data()
    reader.end()
    return ConsumeRequest(start, inclusive, limit, transaction)


def encode_rollback(detail: RollbackDetail) -> bytes:
    """The answer to a publish in a transaction."""
    return optional(detail.write_pointer) + b"".join(map(long, detail[1:]))


class MessageArray:
    """The answer to a poll, made block by block while its messages come.

    A block is full once ids and payloads, and 8 bytes for each message, reach `block_bytes`; the
    message that gets there still belongs to it.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._parts: list[bytes] = []  # four for each message
        self._size = 0

    def add(self, ids: Iterable[bytes], payloads: Iterable[bytes]) -> Iterator[bytes]:
        """Take messages; gives a full block when a message follows it."""
        parts, size, block_bytes = self._parts, self._size, self._block_bytes
        for id, payload in zip(ids, payloads, strict=True):
            if size >= block_bytes:
                yield self._block()
                parts, size = self._parts, 0
            length = len(payload)
            parts += (_ID_LENGTH, id, long(length), payload)
            size += _ENTRY_BYTES + length
        self._size = size

    def end(self) -> bytes:
        """The last block, if there is one, and the end of the array."""
        return self._block() + END if self._parts else END

    def _block(self) -> bytes:
        block = b"".join((long(len(self._parts) // 4), *self._parts))
        self._parts, self._size = [], 0
        return block


# A number as Avro writes it; most of them come again and again.
long = lru_cache(maxsize=1_024)(zigzag)
_ID_LENGTH = long(ID_BYTES)
_ENTRY_BYTES = ID_BYTES + 8  # what a message counts besides its payload


def optional(value: int | None) -> bytes:
    return b"\x02" if value is None else b"\x00" + long(value)


def broken(what: str) -> Malformed:
    return Malformed(f"The body is not the Avro that is meant here: it {what}.")
