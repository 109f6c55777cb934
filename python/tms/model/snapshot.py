"""Visibility of transactions: Apache Tephra's rules and bytes.

A write pointer is the id of a transaction, or of a checkpoint of one, and marks all of its writes:
begin time in ms × 1,000,000 plus a counter. A snapshot is the set of writes that one transaction
may see.

    visible    at or below the read pointer, neither in progress nor invalid then; or its own
    skipped    invalid: it will never be seen
    open       everything else: it may still commit, so a reader that keeps the order stops there

Invariants

* Write pointers are compared here, in `transactions` and in the coprocessor, nowhere else.
* The bytes are those of Tephra's TransactionCodec: Thrift's TBinaryProtocol of a TTransaction.

    field      type 1, number 2, value         i64 8 · i32 4 · list: type of elements 1, count 4
    1 transaction id · 2 read pointer · 3 invalid · 4 in progress · 5 first short · 6 type
    7 write pointer · 8 checkpoints · 9 visibility level · end: 0
"""

import struct
from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto

from tms.errors import Invalid, Malformed
from tms.model.message import Buffer

POINTERS_PER_MS = 1_000_000
NONE_IN_PROGRESS = 2**63 - 1  # first short, if there is none
POINTER_MAX = 2**63 - 1
_I32, _I64, _LIST, _STOP = 8, 10, 15, 0
_FIELD = struct.Struct(">BH")
_LIST_HEAD = struct.Struct(">BI")
_POINTERS = 1 << 24  # more in one list is no snapshot


class TransactionType(IntEnum):
    """The type of a transaction. A short one is checked for conflicts and times out soon."""

    SHORT = 1
    LONG = 2


class VisibilityLevel(IntEnum):
    """The part of its own writes that a transaction sees."""

    SNAPSHOT = 1
    SNAPSHOT_EXCLUDE_CURRENT = 2
    SNAPSHOT_ALL = 3


class Isolation(StrEnum):
    """The messages that a fetch delivers."""

    UNCOMMITTED = "uncommitted"  # everything stored
    COMMITTED = "committed"  # up to the first open transaction, without invalid ones
    SNAPSHOT = "snapshot"  # up to the first message that a snapshot does not include


class Fate(Enum):
    """The outcome of a message with a write pointer."""

    VISIBLE = auto()
    SKIPPED = auto()
    OPEN = auto()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The writes that a transaction may see. The lists ascend."""

    transaction_id: int
    read_pointer: int
    invalid: tuple[int, ...]
    in_progress: tuple[int, ...]  # others, with their checkpoints
    first_short: int = NONE_IN_PROGRESS
    type: TransactionType = TransactionType.SHORT
    write_pointer: int = 0
    checkpoints: tuple[int, ...] = ()
    level: VisibilityLevel = VisibilityLevel.SNAPSHOT

    def fate(self, pointer: int) -> Fate:
        """The outcome, for this transaction, of a message with that write pointer."""
        if self.is_visible(pointer):
            return Fate.VISIBLE
        return Fate.SKIPPED if _holds(self.invalid, pointer) else Fate.OPEN

    def is_visible(self, pointer: int) -> bool:
        """True if this transaction sees the writes with that pointer."""
        if pointer <= self.read_pointer and not self.excludes(pointer):
            return True
        if pointer == self.write_pointer:
            return self.level is not VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
        return pointer == self.transaction_id or pointer in self.checkpoints

    def excludes(self, pointer: int) -> bool:
        """True if the pointer was in progress or invalid when the snapshot was taken."""
        return _holds(self.in_progress, pointer) or _holds(self.invalid, pointer)


def _holds(ascending: tuple[int, ...], pointer: int) -> bool:
    at = bisect_left(ascending, pointer)
    return at < len(ascending) and ascending[at] == pointer


ReadIsolation = Isolation | Snapshot  # the isolation of a fetch


def as_isolation(isolation: str | bytes) -> ReadIsolation:
    """`committed`, `uncommitted`, or a snapshot as Tephra's TransactionCodec writes it. Raises
    `Invalid`, `Malformed`."""
    if isinstance(isolation, bytes):
        return decode_snapshot(isolation)
    if isolation in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
        return Isolation(isolation)
    raise Invalid(
        "The isolation is committed, uncommitted, or snapshot with a snapshot, got "
        f"{str(isolation)[:40]!r}.",
        field="isolation",
    )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as Tephra writes it."""
    parts = [
        _long(1, snapshot.transaction_id),
        _long(2, snapshot.read_pointer),
        _longs(3, snapshot.invalid),
        _longs(4, snapshot.in_progress),
        _long(5, snapshot.first_short),
        _FIELD.pack(_I32, 6) + snapshot.type.to_bytes(4, "big"),
        _long(7, snapshot.write_pointer),
        _longs(8, snapshot.checkpoints),
        _FIELD.pack(_I32, 9) + snapshot.level.to_bytes(4, "big"),
    ]
    return b"".join(parts) + bytes((_STOP,))


def decode_snapshot(raw: Buffer) -> Snapshot:
    """The snapshot in these bytes. Raises `Malformed`."""
    values: dict[int, int | tuple[int, ...]] = {}
    view, at = memoryview(raw), 0
    try:
        while (kind := view[at]) != _STOP:
            number = int.from_bytes(view[at + 1 : at + 3], "big")
            values[number], at = _value(view, kind, at + _FIELD.size)
        return Snapshot(
            _number(values[1]),
            _number(values[2]),
            _list(values.get(3, ())),
            _list(values.get(4, ())),
            _number(values.get(5, NONE_IN_PROGRESS)),
            TransactionType(_number(values.get(6, 1))),
            _number(values.get(7, values[1])),
            _list(values.get(8, ())),
            VisibilityLevel(_number(values.get(9, 1))),
        )
    except (IndexError, KeyError, ValueError, struct.error) as exc:
        raise Malformed(
            "These bytes are no transaction as Tephra's TransactionCodec writes it. Send what "
            "`encode` gave."
        ) from exc


def _value(view: memoryview, kind: int, at: int) -> tuple[int | tuple[int, ...], int]:
    if kind == _I64:
        return struct.unpack_from(">q", view, at)[0], at + 8
    if kind == _I32:
        return struct.unpack_from(">i", view, at)[0], at + 4
    if kind == _LIST:
        of, count = _LIST_HEAD.unpack_from(view, at)
        if of != _I64 or count > min(_POINTERS, (len(view) - at) // 8):
            raise ValueError("a list")
        at += _LIST_HEAD.size
        return struct.unpack_from(f">{count}q", view, at), at + 8 * count
    raise ValueError("a field of another type")


def _number(value: int | tuple[int, ...]) -> int:
    if isinstance(value, tuple):
        raise ValueError("a list where a number belongs")
    return value


def _list(value: int | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(value, int):
        raise ValueError("a number where a list belongs")
    return value if list(value) == sorted(value) else tuple(sorted(value))


def _long(number: int, value: int) -> bytes:
    return _FIELD.pack(_I64, number) + value.to_bytes(8, "big", signed=True)


def _longs(number: int, values: tuple[int, ...]) -> bytes:
    head = _FIELD.pack(_LIST, number) + _LIST_HEAD.pack(_I64, len(values))
    return head + struct.pack(f">{len(values)}q", *values)
