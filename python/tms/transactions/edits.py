"""The edits of the state of transactions: the values in its journal.

JSON, so that people and Java read them: an array of edits that happen together, each an array that
begins with its kind.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tms.errors import DataCorrupt
from tms.model.snapshot import TransactionType
from tms.runtime.decoding import json_decoder


class Outcome(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    INVALID = "invalid"
    TIMED_OUT = "timed-out"


class _Edit(msgspec.Struct, frozen=True, array_like=True, tag=str.lower, tag_field="edit"):
    """Something that happens to the state."""


class Reserved(_Edit, frozen=True):
    """Pointers below `upto` may be given from now on. Synced before the first of them is."""

    upto: int


class Began(_Edit, frozen=True):
    """A transaction begins. `bound`: the visibility upper bound, all before it is decided;
    `intended`: as if `Intended` came with it, in one edit because the journal may end between
    two."""

    id: int
    type: TransactionType
    expires_ms: int
    bound: int
    client: str | None
    token: str
    intended: bool = False


class Checkpointed(_Edit, frozen=True):
    """A transaction got one more pointer."""

    id: int
    pointer: int


class Prepared(_Edit, frozen=True):
    """These changes had no conflict so far."""

    id: int
    changes: tuple[bytes, ...]


class Intended(_Edit, frozen=True):
    """The messages of this transaction are being stored. A start that finds this without an end
    makes the transaction invalid, because no process continues it."""

    id: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A place where blocks of a commit stand: `end_offset` after the last. Of a block that its
    commit is answered with, also time and sequence of the first message, and how many there are."""

    uid: int
    partition: int
    end_offset: int
    time_ms: int = 0
    sequence: int = 0
    count: int = 0


class Committed(_Edit, frozen=True):
    """A transaction is visible from now on. `pointer`: of the commit; `blocks`: what has to be
    there, or the power went before it was stored, and then it is invalid."""

    id: int
    pointer: int
    changes: tuple[bytes, ...] = ()
    blocks: tuple[Stored, ...] = ()


class Aborted(_Edit, frozen=True):
    """A transaction's data was taken back. `checkpoints`: what leaves the invalid list with it."""

    id: int
    checkpoints: tuple[int, ...] = ()


class Invalidated(_Edit, frozen=True):
    """Transactions whose messages may be stored and must never be seen."""

    ids: tuple[int, ...]
    timed_out: bool = False


class Forgotten(_Edit, frozen=True):
    """Invalid transactions that snapshots need not name any more, because nothing is left of them
    elsewhere. Messages of them are still never seen."""

    ids: tuple[int, ...]


class Barred(_Edit, frozen=True):
    """Transactions that were begun elsewhere and invalidated here: their messages are rolled back,
    and nothing more is stored under these pointers."""

    pointers: tuple[int, ...]


class Lost(_Edit, frozen=True):
    """The process ended without a word: pointers from `start` up to `stop` may have been given and
    forgotten, so they are never visible."""

    start: int
    stop: int


class Revoked(_Edit, frozen=True):
    """These commits lost blocks with the power: they are invalid, as if never committed."""

    ids: tuple[int, ...]


class Reset(_Edit, frozen=True):
    """Nothing is in progress, invalid or a conflict any more. What was is never seen."""


class Open(msgspec.Struct, array_like=True):
    """A transaction in progress."""

    began: Began
    checkpoints: tuple[int, ...] = ()
    changes: tuple[bytes, ...] | None = None  # once prepared
    intended: bool = False  # its messages are being stored

    @property
    def pointers(self) -> tuple[int, ...]:
        """Its id and those of its checkpoints."""
        return (self.began.id, *self.checkpoints)

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes with now."""
        return self.checkpoints[-1] if self.checkpoints else self.began.id


class SnapshotPart(_Edit, frozen=True, tag="kept"):
    """A part of a snapshot of the state; all parts replace everything before them. Read only where
    replaying the journal begins. `pointers`: read, last, reserved."""

    pointers: tuple[int, int, int] = (0, 0, 0)
    lost: tuple[tuple[int, int], ...] = ()
    invalid: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    ended: tuple[tuple[int, str, int], ...] = ()
    tokens: tuple[tuple[str, int], ...] = ()
    changes: tuple[tuple[bytes, int, str | None], ...] = ()
    open: Open | None = None
    last: bool = False
    barred: tuple[int, ...] = ()


Edit = (
    Reserved
    | Began
    | Checkpointed
    | Prepared
    | Intended
    | Committed
    | Aborted
    | Invalidated
    | Forgotten
    | Barred
    | Lost
    | Revoked
    | Reset
    | SnapshotPart
)
_encoder = msgspec.json.Encoder()
_decoder = json_decoder(list[Edit])


def encode_edits(edits: Sequence[Edit]) -> bytes:
    """The bytes of a journal entry: edits that happen together."""
    return _encoder.encode(edits)


def decode_edits(raw: bytes) -> list[Edit]:
    """Raises `DataCorrupt`."""
    try:
        edits: list[Edit] = _decoder.decode(raw)
        return edits
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(
            f"An entry in the journal of transactions cannot be read ({exc}). Run `tms fsck`."
        ) from exc
