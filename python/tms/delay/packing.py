"""Entries that are due → blocks for the log.

    entries, in order ─▶ without what was cancelled ─▶ few together, many as they are ─▶ blocks

Invariants

* The messages of a partition stay in the order of their entries.
* A block that is made here holds at most about `BLOCK_BYTES` of entries.
"""

from collections.abc import Iterable, Mapping

from tms.delay.entries import Entry
from tms.delay.shelf import cancelled_of
from tms.model.block import MESSAGES_MAX, Columns, encode
from tms.model.delayed import DelayedId
from tms.model.log import NewBlock

BLOCK_BYTES = 512 << 10
WHOLE_MESSAGES, WHOLE_BYTES = 64, 32 << 10  # from here on an entry's block is used as it is


class _Filling:
    """The messages of a partition that are not in a block yet."""

    __slots__ = ("bytes", "headers", "keys", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Mapping[str, bytes]] = []
        self.bytes = 0

    def add(self, columns: Columns, size: int, gone: set[int]) -> None:
        """Take the messages of an entry, but for some."""
        values, keys, headers = columns.values(), columns.keys(), columns.headers()
        if gone:
            left = [at for at in range(columns.count) if at not in gone]
            values, keys = [values[at] for at in left], [keys[at] for at in left]
            headers = [headers[at] for at in left]
        self.values += values
        self.keys += keys
        self.headers += headers
        self.bytes += size

    def block(self) -> bytearray:
        """All of them, in a block."""
        keys = self.keys if any(key is not None for key in self.keys) else None
        return encode(self.values, keys, self.headers if any(self.headers) else None)


def blocks_of(
    entries: Iterable[Entry], cancelled: set[DelayedId]
) -> tuple[list[NewBlock], list[tuple[int, int]]]:
    """The blocks, and for each entry when it was due and how many messages of it are in them.
    Raises `DataCorrupt`."""
    blocks: list[NewBlock] = []
    counts: list[tuple[int, int]] = []
    fillings: dict[int, _Filling] = {}

    def finish(partition: int) -> None:
        filling = fillings.pop(partition, None)
        if filling is not None and filling.values:
            blocks.append(NewBlock(partition, filling.block()))

    for entry in entries:
        partition, count, size = entry.partition, entry.header.count, len(entry.block)
        gone = cancelled_of(entry, cancelled)
        counts.append((entry.id.due_ms, count - len(gone)))
        if len(gone) == count:
            continue
        columns = entry.columns()  # damage is found before anything of it is in the log
        if not gone and (count >= WHOLE_MESSAGES or size >= WHOLE_BYTES):
            finish(partition)
            blocks.append(NewBlock(partition, bytearray(entry.block)))
            continue
        filling = fillings.setdefault(partition, _Filling())
        if filling.bytes and (
            filling.bytes + size > BLOCK_BYTES
            or len(filling.values) + count - len(gone) > MESSAGES_MAX
        ):
            finish(partition)
            filling = fillings.setdefault(partition, _Filling())
        filling.add(columns, size, gone)
    for partition in [*fillings]:
        finish(partition)
    return blocks, counts
