"""Overwriting rows: the timestamps of their present cells decide those of the new ones.

Each overwrite has a later timestamp than the one before, so a late repeat of an earlier one never
wins. Pieces that the new value has not (`rows.pieces`) would stay below it for ever, so they are
deleted.
"""

from collections.abc import Sequence
from typing import Any

from tms.store.hbase.connection import types
from tms.store.hbase.pool import Pool
from tms.store.hbase.rows import FAMILY, PIECE_BYTES, StoredRow, is_more
from tms.store.hbase.scanning import LENGTHS, PAGE_ROWS_MAX, Pages

LATER_MAX = 1 << 20  # overwrites of a row, at most: a deletion hides timestamps up to it


def replacements(
    pool: Pool, table: bytes, fresh: Sequence[StoredRow]
) -> tuple[list[StoredRow], list[Any]]:
    """The puts that replace existing rows, and the deletes to issue after them. The rows ascend;
    only their lengths are read."""
    by_row = {one.row: one for one in fresh}
    stored: list[StoredRow] = []
    stale: list[Any] = []
    pages = Pages(pool, table, fresh[0].row, fresh[-1].row + b"\0", filter=LENGTHS)
    while not pages.ended:
        for result in pages.next(min(PAGE_ROWS_MAX, len(fresh) + 64)):
            if (one := by_row.get(result.row)) is not None:
                cells = result.columnValues
                timestamp = max(cell.timestamp for cell in cells)
                stored.append(one._replace(timestamp=timestamp + 1))
                pieces = [cell.qualifier for cell in cells if is_more(cell.qualifier)]
                present = max(0, (len(one.value) - 1) // PIECE_BYTES)
                if len(pieces) > present:
                    stale.append(_deletion(one.row, pieces[present:], timestamp))
    return stored, stale


def _deletion(row: bytes, pieces: Sequence[bytes], timestamp: int) -> Any:
    kinds = types()
    return kinds.TDelete(
        row=row,
        columns=[kinds.TColumn(family=FAMILY, qualifier=name) for name in pieces],
        timestamp=timestamp,
        deleteType=kinds.TDeleteType.DELETE_COLUMNS,
        durability=kinds.TDurability.FSYNC_WAL,
    )
