"""The state of all transactions as one value, and the bytes from which Tephra's tools read it.

    version 4 · time (ms) · read pointer · write pointer
    invalid      count, pointers                                                          0
    in progress  count, each: pointer, expiry (ms), bound, kind, count, checkpoints, 0    0
    committing   count, each: id, count, changes, 0                                       0
    committed    the same, by commit pointer                                              0
    lost         count, each: first, stop                                                 0

The last line is an extension of TMS and present only if pointers were lost; Tephra's readers end
before it.

Every number is a zig-zag variable-length integer, as in Avro; a change is its length and its bytes;
an empty list is only the 0 at its end. Kinds: 0 short, 1 long, 2 checkpoint.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tms.errors import DataCorrupt
from tms.model.snapshot import POINTER_MAX, POINTERS_PER_MS, Fate, TransactionType
from tms.model.zigzag import read_zigzag, zigzag

VERSION = 4
_CHECKPOINT = 2
_KINDS = {TransactionType.SHORT: 0, TransactionType.LONG: 1, None: _CHECKPOINT}


@dataclass(frozen=True, slots=True)
class InProgress:
    """A pointer in progress. `type` None: it is a checkpoint."""

    pointer: int
    expires_ms: int
    bound: int
    type: TransactionType | None
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionImage:
    """All transactions at one moment. The lists ascend."""

    time_ms: int
    read_pointer: int
    write_pointer: int
    invalid: tuple[int, ...] = ()
    in_progress: tuple[InProgress, ...] = ()
    committing: Mapping[int, tuple[bytes, ...]] | None = None
    committed: Mapping[int, tuple[bytes, ...]] | None = None
    lost: tuple[tuple[int, int], ...] = ()  # ranges of pointers that never commit, half open

    def pointers_in_progress(self) -> Iterator[int]:
        """The pointers in progress, with those of checkpoints."""
        for transaction in self.in_progress:
            yield transaction.pointer
            yield from transaction.checkpoints


class Fates:
    """The outcomes of messages, as an image decides them; by the rules of the coprocessor.

    open       in progress, or begun after the image; a foreign one that is young
    skipped    invalid, lost in a crash; a foreign one that is too old to commit
    visible    everything else
    """

    def __init__(self, image: TransactionImage, foreign_lifetime_ms: int) -> None:
        self._image = image
        self._foreign_lifetime_ms = foreign_lifetime_ms
        self._invalid = frozenset(image.invalid)
        self._in_progress = frozenset(image.pointers_in_progress())

    def of(self, pointer: int, issued: bool) -> Fate:
        """The outcome of messages with this pointer. `issued`: TMS has assigned it."""
        if not issued:
            ends_ms = pointer // POINTERS_PER_MS + self._foreign_lifetime_ms
            return Fate.SKIPPED if ends_ms < self._image.time_ms else Fate.OPEN
        if pointer > self._image.write_pointer or pointer in self._in_progress:
            return Fate.OPEN
        if pointer in self._invalid or self._is_lost(pointer):
            return Fate.SKIPPED
        return Fate.VISIBLE

    def undecided_since_ms(self, foreign: bool) -> int:
        """A time before which no open transaction began. With `foreign`, transactions that TMS did
        not begin count too."""
        begun = [pointer // POINTERS_PER_MS for pointer in self._in_progress]
        since_ms = min([self._image.time_ms, *begun])
        return min(
            since_ms, self._image.time_ms - self._foreign_lifetime_ms if foreign else since_ms
        )

    def _is_lost(self, pointer: int) -> bool:
        lost = self._image.lost
        at = bisect_right(lost, (pointer, POINTER_MAX)) - 1
        return at >= 0 and lost[at][0] <= pointer < lost[at][1]


def encode_image(image: TransactionImage) -> bytes:
    """The image in the form of Tephra's SnapshotCodecV4, then the lost pointers."""
    in_progress = (
        _numbers(
            transaction.pointer, transaction.expires_ms, transaction.bound, _KINDS[transaction.type]
        )
        + _list(map(zigzag, transaction.checkpoints))
        for transaction in image.in_progress
    )
    parts = [
        _numbers(VERSION, image.time_ms, image.read_pointer, image.write_pointer),
        _list(map(zigzag, image.invalid)),
        _list(in_progress),
        _changes(image.committing or {}),
        _changes(image.committed or {}),
    ]
    if image.lost:
        parts.append(_list(_numbers(*ends) for ends in image.lost))
    return b"".join(parts)


def _numbers(*numbers: int) -> bytes:
    return b"".join(map(zigzag, numbers))


def _list(items: Iterable[bytes]) -> bytes:
    written = list(items)
    return b"".join((zigzag(len(written)), *written, b"\0")) if written else b"\0"


def _changes(changes: Mapping[int, Iterable[bytes]]) -> bytes:
    return _list(
        zigzag(pointer) + _list(zigzag(len(key)) + key for key in keys)
        for pointer, keys in changes.items()
    )


def decode_image(raw: bytes) -> TransactionImage:
    """The image in these bytes. Raises `DataCorrupt`."""
    reader = _ImageReader(raw)
    try:
        version = reader.number()
        if version != VERSION:
            raise DataCorrupt(f"An image of transactions has version {VERSION}, not {version}.")
        head = [reader.number() for _ in range(3)]
        invalid = tuple(reader.number() for _ in reader.items())
        in_progress = tuple(reader.in_progress() for _ in reader.items())
        committing = {reader.number(): reader.changes() for _ in reader.items()}
        committed = {reader.number(): reader.changes() for _ in reader.items()}
        more = reader.at < len(raw)
        lost = tuple((reader.number(), reader.number()) for _ in reader.items()) if more else ()
        if reader.at < len(raw) or list(sum(lost, ())) != sorted({*sum(lost, ())}):
            raise ValueError("lost ranges")
    except (IndexError, OverflowError, ValueError) as exc:
        raise DataCorrupt("The image of transactions is damaged; it will be replaced.") from exc
    return TransactionImage(
        head[0], head[1], head[2], invalid, in_progress, committing, committed, lost
    )


class _ImageReader:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def number(self) -> int:
        value, self.at = read_zigzag(self.raw, self.at)
        return value

    def items(self) -> Iterator[None]:
        """Yields once for each item of a list; the caller reads the item."""
        while count := self.number():
            for _ in range(count):
                yield None

    def in_progress(self) -> InProgress:
        pointer, expires_ms, bound, kind = (self.number() for _ in range(4))
        types = {number: type for type, number in _KINDS.items()}
        if kind not in types:
            raise ValueError("a kind of transaction")
        checkpoints = tuple(self.number() for _ in self.items())
        return InProgress(pointer, expires_ms, bound, types[kind], checkpoints)

    def changes(self) -> tuple[bytes, ...]:
        return tuple(self.bytes() for _ in self.items())

    def bytes(self) -> bytes:
        size = self.number()
        read = self.raw[self.at : self.at + size]
        if len(read) != size:
            raise IndexError(size)
        self.at += size
        return read
