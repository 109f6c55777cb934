"""Packing due entries into blocks for the log.

    entries, in order ─▶ without cancelled ones ─▶ small ones together, large as they are ─▶ blocks

Invariants

* The messages of a partition stay in the order of their entries.
* A block that is made here holds at most about `BLOCK_BYTES` of entries.
* Neither a damaged entry nor one that is due after it comes into the log.
"""

from collections.abc import Iterable

from tms.block import MESSAGES_MAX, Columns, decode, encode, unpack_lone
from tms.delayed.entries import DelayedEntry
from tms.errors import DataCorrupt
from tms.model.delayed import DelayedId
from tms.model.message import Headers, NewBlock

BLOCK_BYTES = 512 << 10
WHOLE_MESSAGES, WHOLE_BYTES = 64, 32 << 10  # from here on an entry's block is used as it is


class _DelayedFilling:
    """Messages of a partition that are not in a block yet."""

    __slots__ = ("bytes", "event_times", "headers", "keys", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        self.event_times: list[int | None] = []
        self.bytes = 0

    def add_lone(self, key: bytes | None, value: bytes) -> None:
        """Add the only message of an entry."""
        self.values.append(value)
        self.keys.append(key)
        self.headers.append(None)
        self.event_times.append(None)

    def add(self, columns: Columns, gone: set[int]) -> None:
        """Add the messages of an entry, without those at the indexes `gone`."""
        values, keys, headers = columns.values(), columns.keys(), columns.headers()
        event_times = columns.event_times()
        left = [at for at in range(columns.count) if at not in gone]
        self.values += [values[at] for at in left]
        self.keys += [keys[at] for at in left]
        self.headers += [headers[at] for at in left]
        self.event_times += [event_times[at] for at in left]

    def block(self) -> bytearray:
        """A block of all messages."""
        keys = self.keys if any(key is not None for key in self.keys) else None
        headers = self.headers if any(self.headers) else None
        return encode(self.values, keys, headers, self.event_times)


class Packer:
    """Packs entries, which come in order, into blocks."""

    def __init__(self) -> None:
        self._blocks: list[NewBlock] = []
        self._fillings: dict[int, _DelayedFilling] = {}

    def add(self, entry: DelayedEntry, gone: set[int]) -> None:
        """Add an entry, without its messages at the indexes `gone`. Raises `DataCorrupt`."""
        if entry.messages == 1 and (lone := unpack_lone(entry.block)) is not None:
            self._room(entry).add_lone(*lone)
            return
        columns = decode(entry.block)
        if not gone and (entry.messages >= WHOLE_MESSAGES or len(entry.block) >= WHOLE_BYTES):
            self._finish(entry.partition)
            self._blocks.append(NewBlock(entry.partition, bytearray(entry.block)))
        else:
            self._room(entry).add(columns, gone)

    def blocks(self) -> list[NewBlock]:
        """The blocks of all added entries."""
        for partition in list(self._fillings):
            self._finish(partition)
        return self._blocks

    def _room(self, entry: DelayedEntry) -> _DelayedFilling:
        filling, size = self._fillings.get(entry.partition), len(entry.block)
        if filling is not None and (
            filling.bytes + size > BLOCK_BYTES
            or len(filling.values) + entry.messages > MESSAGES_MAX
        ):
            self._finish(entry.partition)
            filling = None
        if filling is None:
            filling = self._fillings[entry.partition] = _DelayedFilling()
        filling.bytes += size
        return filling

    def _finish(self, partition: int) -> None:
        filling = self._fillings.pop(partition, None)
        if filling is not None:
            self._blocks.append(NewBlock(partition, filling.block()))


def blocks_of(
    entries: Iterable[DelayedEntry], cancelled: set[DelayedId]
) -> tuple[list[NewBlock], list[tuple[int, int]]]:
    """The blocks of entries, and for each entry its due time and the number of its messages in
    them; up to a damaged entry. Raises `DataCorrupt` if that is the first."""
    packer = Packer()
    counts: list[tuple[int, int]] = []
    for entry in entries:
        gone = entry.places_of(cancelled)
        try:
            if len(gone) < entry.messages:
                packer.add(entry, gone)
        except DataCorrupt:
            if not counts:
                raise
            break
        counts.append((entry.id.due_ms, entry.messages - len(gone)))
    return packer.blocks(), counts
