"""The wanted tables of TMS in HBase: attributes, families, regions. Values only.

    table      settings beyond HBase's, and why
    messages   bloom filter over the first 24 characters of a row, which name a segment: a scan of
               a segment opens only the store files that have rows of it
    payloads   the same: the first 24 characters name a partition's day
    metadata   blocks of 16 KiB, kept in memory first: single small records are read all the time

    coprocessor$1 = PATH|io.tms.hbase.RetentionObserver|1073741823|

Invariants

* Attributes that TMS relies on (`RELIED_ON`) are corrected wherever they differ. All others are set
  when a table is created, and stay as the operator has changed them since.
* Attributes and coprocessors of others stay.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tms.store.hbase.admin import TTL, TTL_FOREVER_S, HBaseTable
from tms.store.hbase.rows import MESSAGES, METADATA, PAYLOADS, PREFIX_CHARS

WATCHED = (MESSAGES, PAYLOADS)  # the tables with a coprocessor
COPROCESSOR = "io.tms.hbase.RetentionObserver"
PRIORITY = 1_073_741_823  # HBase's for what users load
REGIONS, REGIONS_MAX = 16, 1_024
ISOLATION, REFRESH, ENABLED = "tms.isolation", "tms.refresh.ms", "tms.enabled"
_SLOT = re.compile(r"coprocessor\$([0-9]+)", re.ASCII)

# One version of a cell, kept until the coprocessor drops it: a time to live of HBase's own would
# drop rows in the midst of an open segment, and a second version would keep what was rolled back.
RELIED_ON: Mapping[str, str] = {
    "VERSIONS": "1",
    "MIN_VERSIONS": "0",
    "TTL": str(TTL_FOREVER_S),
    "KEEP_DELETED_CELLS": "FALSE",
}
_BLOCKS = HBaseTable(
    MESSAGES,
    # In the log of HBase when it is acknowledged; TMS asks for more, write by write.
    {"DURABILITY": "SYNC_WAL"},
    {
        **RELIED_ON,
        "BLOOMFILTER": "ROWPREFIX_FIXED_LENGTH",
        "BLOCKSIZE": str(64 << 10),  # rows are about as large, or many to a page of a scan
        "COMPRESSION": "NONE",  # producers compress blocks, and not every HBase has every codec
    },
    {"RowPrefixBloomFilter.prefix_length": str(PREFIX_CHARS)},
)
DESIGNS: Mapping[str, HBaseTable] = {
    MESSAGES: _BLOCKS,
    PAYLOADS: replace(_BLOCKS, name=PAYLOADS),
    METADATA: HBaseTable(
        METADATA,
        {"DURABILITY": "FSYNC_WAL"},
        {**RELIED_ON, "BLOOMFILTER": "ROW", "BLOCKSIZE": str(16 << 10), "IN_MEMORY": "true"},
    ),
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """The operator's settings of the coprocessor; None: unchanged, empty: HBase's default."""

    ttl: str | None = None
    isolation: str | None = None
    refresh: str | None = None

    def changed(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """The attributes with these settings."""
        made = dict(attributes)
        for name, value in ((TTL, self.ttl), (ISOLATION, self.isolation), (REFRESH, self.refresh)):
            if value:
                made[name] = value
            elif value is not None:
                made.pop(name, None)
        return made


def coprocessor_path(table: HBaseTable) -> str | None:
    """The path of the jar of a table's coprocessor; None without the coprocessor."""
    slot = _slot(table.attributes)
    return table.attributes[slot].partition("|")[0].strip() if slot is not None else None


def with_coprocessor(table: HBaseTable, path: str | None) -> HBaseTable:
    """The table with the coprocessor of this path; without it if there is none."""
    made = table.settings
    slot = _slot(made)
    if path is None:
        if slot is not None:
            del made[slot]
    else:
        made[slot or _free_slot(made)] = f"{path}|{COPROCESSOR}|{PRIORITY}|"
    return replace(table, attributes=made)


def mended(table: HBaseTable, tuning: Tuning) -> HBaseTable:
    """The table with the attributes that TMS relies on, and the operator's settings."""
    attributes = table.settings
    if table.name in WATCHED:
        if table.ttl_ms is not None:  # HBase's own time to live, which `RELIED_ON` removes
            attributes[TTL] = str(table.ttl_ms)
        attributes = tuning.changed(attributes)
    family = {**table.family_attributes, **RELIED_ON}
    return replace(table, attributes=attributes, family_attributes=family)


def differences(found: HBaseTable, wanted: HBaseTable) -> list[str]:
    """The changes, in words."""
    changes = []
    for before, after in (
        (found.settings, wanted.attributes),
        (found.family_attributes, wanted.family_attributes),
    ):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                changes.append(f"{name} = {after[name]}" if name in after else f"{name} removed")
    return changes


def _slot(attributes: Mapping[str, str]) -> str | None:
    """The attribute of TMS's coprocessor."""
    for name, value in attributes.items():
        parts = value.split("|")
        if _SLOT.fullmatch(name) and len(parts) > 1 and parts[1].strip() == COPROCESSOR:
            return name
    return None


def _free_slot(attributes: Mapping[str, str]) -> str:
    taken = {int(found[1]) for name in attributes if (found := _SLOT.fullmatch(name))}
    return f"coprocessor${next(n for n in range(1, len(taken) + 2) if n not in taken)}"
