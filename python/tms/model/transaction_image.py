"""The state of all transactions as one value, and the bytes that Tephra's tools read it from.

    version 4 · time (ms) · read pointer · write pointer
    invalid      count, pointers                                                          0
    in progress  count, each: pointer, expiry (ms), bound, kind, count, checkpoints, 0    0
    committing   count, each: id, count, changes, 0                                       0
    committed    the same, by commit pointer                                              0
    lost         count, each: first, stop                                                 0

The last line is ours and only there when something was lost; Tephra's readers end before it.

Every number is a zig-zag variable-length integer, as in Avro; a change is its length and its
bytes; an empty list is only the 0 at its end. Kinds: 0 short, 1 long, 2 checkpoint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tms.model.snapshot import TransactionType

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


def encode_image(image: TransactionImage) -> bytes:
    """The image as Tephra's SnapshotCodecV4 writes it, then what was lost."""
    out = bytearray()
    for number in (VERSION, image.time_ms, image.read_pointer, image.write_pointer):
        _put(out, number)
    _put_list(out, image.invalid)
    if image.in_progress:
        _put(out, len(image.in_progress))
        for one in image.in_progress:
            for number in (one.pointer, one.expires_ms, one.bound, _KINDS[one.type]):
                _put(out, number)
            _put_list(out, one.checkpoints)
    _put(out, 0)
    _put_changes(out, image.committing or {})
    _put_changes(out, image.committed or {})
    if image.lost:
        _put(out, len(image.lost))
        for first, stop in image.lost:
            _put(out, first)
            _put(out, stop)
        _put(out, 0)
    return bytes(out)


def _put_list(out: bytearray, numbers: tuple[int, ...]) -> None:
    if numbers:
        _put(out, len(numbers))
        for number in numbers:
            _put(out, number)
    _put(out, 0)


def _put_changes(out: bytearray, changes: Mapping[int, Iterable[bytes]]) -> None:
    if changes:
        _put(out, len(changes))
        for pointer, keys in changes.items():
            _put(out, pointer)
            found = list(keys)
            if found:
                _put(out, len(found))
                for key in found:
                    _put(out, len(key))
                    out += key
            _put(out, 0)
    _put(out, 0)


def _put(out: bytearray, number: int) -> None:
    value = number << 1 if number >= 0 else (-number << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
