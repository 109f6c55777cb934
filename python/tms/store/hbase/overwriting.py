"""What a row has to be written over: the timestamps of its cells as they are now.

Each overwriting has a later timestamp than the one before, so a repeat of an earlier one that lands
late never wins. Pieces that the new value has not (`rows.pieces`) would stay below it for ever, so
they are deleted.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from tms.store.hbase.rows import FAMILY, PIECE_BYTES, StoredRow, is_more
from tms.store.hbase.thrift.connection import types
from tms.store.hbase.thrift.pool import Pool
from tms.store.hbase.thrift.scanning import LENGTHS, PAGE_ROWS_MAX, Pages

LATER_MAX = 1 << 20  # more often no row is overwritten: a deletion hides timestamps up to it


class _StoredRow(NamedTuple):
    """A row as it is: its newest timestamp, and its pieces beyond the first."""

    timestamp: int
    more: tuple[bytes, ...]


def replacements(
    pool: Pool, table: bytes, fresh: Sequence[StoredRow]
) -> tuple[list[StoredRow], list[Any]]:
    """What to write over those of these rows that are there, and the deletions that follow. The
    rows ascend; nothing but their lengths is read."""
    before = _standing(pool, table, [one.row for one in fresh])
    there = [one for one in fresh if one.row in before]
    stored = [one._replace(timestamp=before[one.row].timestamp + 1) for one in there]
    stale = [_stale_pieces(one.row, before[one.row], len(one.value)) for one in there]
    return stored, [*chain.from_iterable(stale)]


def _standing(pool: Pool, table: bytes, rows: Sequence[bytes]) -> dict[bytes, _StoredRow]:
    wanted, found = set(rows), dict[bytes, _StoredRow]()
    pages = Pages(pool, table, rows[0], rows[-1] + b"\0", filter=LENGTHS)
    while not pages.ended:
        for one in pages.next(min(PAGE_ROWS_MAX, len(rows) + 64)):
            if one.row in wanted:
                cells = one.columnValues
                more = tuple(cell.qualifier for cell in cells if is_more(cell.qualifier))
                found[one.row] = _StoredRow(max(cell.timestamp for cell in cells), more)
    return found


def _stale_pieces(row: bytes, before: _StoredRow, value_bytes: int) -> Iterator[Any]:
    """The deletion of the pieces that a value of this size leaves behind."""
    kept = max(0, (value_bytes - 1) // PIECE_BYTES)
    gone = before.more[kept:]
    if gone:
        kinds = types()
        yield kinds.TDelete(
            row=row,
            columns=[kinds.TColumn(family=FAMILY, qualifier=name) for name in gone],
            timestamp=before.timestamp,
            deleteType=kinds.TDeleteType.DELETE_COLUMNS,
            durability=kinds.TDurability.FSYNC_WAL,
        )
