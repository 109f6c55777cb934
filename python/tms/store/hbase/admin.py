"""Tables, regions and notes of TMS in HBase, for operators.

Invariants

* Everything here goes through Thrift 2 and can be repeated; only `drop_table` and `drop_namespace`
  drop anything.
* A change in the master is not repeated automatically: its outcome is looked up.
"""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from tms.errors import DataCorrupt, StorageUnavailable, TMSError
from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.base import pages
from tms.store.hbase.connection import types
from tms.store.hbase.pool import HBasePlace, Limits, Pool
from tms.store.hbase.records import RecordMap
from tms.store.hbase.rows import FAMILY, METADATA, RecordRows, table_name
from tms.store.hbase.scanning import PAGE_BYTES, Pages

TTL = "tms.ttl"
TTL_FOREVER_S = 2**31 - 1  # HBase's time to live if none is set
ADMIN_S = 120.0  # long enough for a table with many regions
CONFIG = b"!config/"
REGIONS = b"!region/"
PROBE = b"tms.probe"
CLEANUP = b"tms.cleanup"
# Attributes that HBase adds to a table.
_OWN = frozenset({"IS_META", "DURABILITY", "hbase.store.file-tracker.impl"})
_PROBE_QUALIFIER = b"probe"
_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
_META = b"hbase:meta"
_META_ROWS = 1_000
_SERVER_ONLY = b"QualifierFilter(=, 'binary:server')"


@dataclass(frozen=True, slots=True)
class HBaseTable:
    """A table with the one family that TMS uses. The name is without namespace. Attributes are
    text, as HBase stores and shows them: `tms.ttl`, `coprocessor$1`; of the family `VERSIONS`,
    `COMPRESSION`, `TTL` …; its configuration has entries that a site file would set for all
    tables."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    family_attributes: Mapping[str, str] = field(default_factory=dict)
    family_configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """The attributes, except those that HBase adds."""
        return {name: value for name, value in self.attributes.items() if name not in _OWN}

    @property
    def ttl_ms(self) -> int | None:
        """The retention of topics that are unknown or have none of their own: `tms.ttl`, or else
        HBase's own time to live. None if neither is set."""
        own = self.attributes.get(TTL)
        if own is not None:
            return int(own) if _DIGITS.fullmatch(own) else None
        seconds = self.family_attributes.get("TTL", "")
        found = int(seconds) if _DIGITS.fullmatch(seconds) else 0
        return found * 1_000 if 0 < found < TTL_FOREVER_S else None


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its server. Rows are a half-open range, empty is open."""

    table: str
    encoded: str  # its name in `!region/TABLE/ENCODED`; empty while it splits or merges
    start: bytes
    end: bytes
    server: str  # HOST:PORT; empty while it is moving


class Probe(msgspec.Struct, frozen=True):
    """The report of the coprocessor in a region."""

    version: str
    enabled: bool
    table: str
    metadata_age_ms: int | None = None
    image_age_ms: int | None = None
    topics_age_ms: int | None = None  # since all topics were read; rows expire by that time


class Admin:
    """The operations on the tables of one namespace. Thread-safe."""

    def __init__(self, place: HBasePlace, clock: Clock, limits: Limits | None = None) -> None:
        self.place = place
        self._pool = Pool(place, clock, limits or Limits())
        metadata = table_name(place.namespace, METADATA)
        self._config = RecordMap(self._pool, RecordRows(metadata, CONFIG))
        self._regions = RecordMap(self._pool, RecordRows(metadata, REGIONS))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    # -- namespaces and tables -----------------------------------------------------------------

    def cluster_id(self) -> str:
        """The id of the HBase cluster."""
        return _text(self._read("getClusterId"))

    def namespaces(self) -> list[str]:
        """All namespaces."""
        return sorted(_text(name) for name in self._read("listNamespaces"))

    def create_namespace(self) -> bool:
        """Create the namespace; False if it existed."""
        wanted = types().TNamespaceDescriptor(name=self.place.namespace)
        return self._change(
            "createNamespace", wanted, done=lambda: self.place.namespace in self.namespaces()
        )

    def tables(self) -> list[str]:
        """The names of all tables of the namespace; empty if there is no namespace."""
        if self.place.namespace not in self.namespaces():
            return []
        found = self._read("getTableNamesByNamespace", self.place.namespace)
        return sorted(one.qualifier.decode() for one in found)

    def table(self, name: str) -> HBaseTable:
        """The description of a table. Raises `ConfigError` if it does not exist."""
        found = self._read("getTableDescriptor", self._name(name))
        family = next((one for one in found.columns if one.name == FAMILY), None)
        if family is None:
            raise DataCorrupt(f"The table {self.place.namespace}:{name} has no family m.")
        return HBaseTable(
            name, _texts(found.attributes), _texts(family.attributes), _texts(family.configuration)
        )

    def create_table(self, table: HBaseTable, split_rows: Sequence[bytes] = ()) -> bool:
        """Create a table that is split at these rows; False if it existed."""
        if table.name in self.tables():
            return False
        return self._change(
            "createTable",
            self._descriptor(table),
            list(split_rows),
            done=lambda: table.name in self.tables() and self.available(table.name),
        )

    def modify_table(self, table: HBaseTable) -> bool:
        """Set a table's attributes as described (others are removed), and the named ones of its
        family; its regions reopen. False if there was nothing to change."""
        found = self._read("getTableDescriptor", self._name(table.name))
        own = {name.encode() for name in _OWN}
        unchanged = {name: value for name, value in found.attributes.items() if name in own}
        found.attributes = {**unchanged, **_raw(table.attributes)}
        found.durability = None  # is one of the attributes
        found.columns = [_family(table, one) for one in found.columns]
        return self._change("modifyTable", found, done=lambda: _fits(self.table(table.name), table))

    def enable(self, name: str) -> bool:
        """Enable a table; False if it was enabled."""
        return self._toggle("enableTable", "isTableEnabled", name)

    def disable(self, name: str) -> bool:
        """Disable a table; False if it was disabled."""
        return self._toggle("disableTable", "isTableDisabled", name)

    def drop_table(self, name: str) -> bool:
        """Delete a disabled table with all of its rows; False if there was none."""
        return self._change("deleteTable", self._name(name), done=lambda: name not in self.tables())

    def drop_namespace(self) -> bool:
        """Delete the namespace, which must be empty; False if there was none."""
        return self._change(
            "deleteNamespace",
            self.place.namespace,
            done=lambda: self.place.namespace not in self.namespaces(),
        )

    def enabled(self, name: str) -> bool:
        """True if a table is enabled."""
        return bool(self._read("isTableEnabled", self._name(name)))

    def available(self, name: str) -> bool:
        """True if all regions of a table are on servers."""
        return bool(self._read("isTableAvailable", self._name(name)))

    # -- regions -------------------------------------------------------------------------------

    def servers(self) -> list[str]:
        """The names of the machines that have any region of any table."""
        scan = Pages(self._pool, _META, b"", b"\xff", filter=_SERVER_ONLY)
        hosts: set[str] = set()
        while not scan.ended:
            for one in scan.next(_META_ROWS):
                hosts |= {_text(cell.value).rpartition(":")[0] for cell in one.columnValues}
        return sorted(hosts)

    def regions(self, name: str) -> list[Region]:
        """The regions of a table, in order; at least one. Raises `ConfigError` if the table does
        not exist."""
        full_name = table_name(self.place.namespace, name)
        found = self._read("getAllRegionLocations", full_name)
        if not found:  # HBase's answer for a missing table
            self.table(name)
            raise StorageUnavailable(f"No region of {name} is on a server. Try again.")
        encoded = self._encoded_names(full_name)
        return sorted((_region(name, encoded, one) for one in found), key=lambda one: one.start)

    def probe(self, region: Region) -> Probe | None:
        """The report of the coprocessor in a region; None if there is none."""
        wanted = types().TGet(row=region.start or b"0", attributes={PROBE: b"1"})
        found = self._read("get", table_name(self.place.namespace, region.table), wanted)
        for cell in found.columnValues:
            if (cell.family, cell.qualifier) == (FAMILY, _PROBE_QUALIFIER):
                try:
                    return from_json(cell.value, Probe)
                except msgspec.MsgspecError as exc:
                    raise DataCorrupt(
                        f"The coprocessor of {region.table} answers {cell.value[:200]!r}; install "
                        "the version that belongs to this TMS."
                    ) from exc
        return None

    def clean_up(self, region: Region) -> bool:
        """Start a flush and a compaction of a region by its coprocessor, which go on after the
        return. False if there is no coprocessor that can do it."""
        row = region.start or b"0"
        # The condition is never true: without the coprocessor nothing is written.
        put = types().TPut(
            row=row,
            columnValues=[types().TColumnValue(family=FAMILY, qualifier=b"cleanup", value=b"")],
            attributes={CLEANUP: b"1"},
        )
        table = table_name(self.place.namespace, region.table)
        return bool(self._read("checkAndPut", table, row, FAMILY, b"cleanup", b"never", put))

    # -- notes ---------------------------------------------------------------------------------

    def config(self, name: str) -> bytes | None:
        """The value of a note."""
        return self._config.get(name.encode())

    def set_config(self, name: str, value: bytes) -> None:
        """Store a note under this name, durably."""
        self._config.write([(name.encode(), value)], Durability.SYNCED)

    def region_notes(self) -> dict[str, bytes]:
        """The notes of the coprocessor, by `TABLE/ENCODED`."""
        found = chain.from_iterable(pages(self._regions, None, None, PAGE_BYTES))
        return {key.decode(errors="replace"): value for key, value in found}

    # -- parts ---------------------------------------------------------------------------------

    def _encoded_names(self, table: bytes) -> dict[bytes, str]:
        """The newest region that begins at each row, which hbase:meta has and Thrift has not."""
        newest: dict[bytes, tuple[int, str]] = {}
        scan = Pages(self._pool, _META, table + b",,", table + b"-", filter=b"FirstKeyOnlyFilter()")
        while not scan.ended:
            for one in scan.next(_META_ROWS):  # TABLE,START,ID.ENCODED.
                start, _, last = one.row[len(table) + 1 :].rpartition(b",")
                id, _, encoded = last.rstrip(b".").partition(b".")
                newest[start] = max(newest.get(start, (0, "")), (int(id), encoded.decode()))
        return {start: encoded for start, (_, encoded) in newest.items()}

    def _read(self, method: str, *arguments: Any) -> Any:
        return self._pool.call(method, *arguments, repeatable=True)

    def _change(self, method: str, *arguments: Any, done: Callable[[], Any]) -> bool:
        """Call the master; False if there was nothing to change. If the master's answer is lost,
        `done` finds out if the change was made."""
        if done():
            return False
        try:
            self._pool.call(method, *arguments, repeatable=False, call_s=ADMIN_S)
        except StorageUnavailable as error:
            with contextlib.suppress(TMSError):
                if done():
                    return True
            raise error
        return True

    def _toggle(self, change: str, state: str, name: str) -> bool:
        named = self._name(name)
        return self._change(change, named, done=lambda: self._read(state, named))

    def _name(self, name: str) -> Any:
        return types().TTableName(ns=self.place.namespace.encode(), qualifier=name.encode())

    def _descriptor(self, table: HBaseTable) -> Any:
        return types().TTableDescriptor(
            tableName=self._name(table.name),
            columns=[_family(table, types().TColumnFamilyDescriptor(name=FAMILY))],
            attributes=_raw(table.attributes),
        )


def _family(table: HBaseTable, found: Any) -> Any:
    """The wanted family, in attributes alone: typed fields would take precedence over them."""
    attributes, configuration = found.attributes or {}, found.configuration or {}
    if found.name == FAMILY:
        attributes = {**attributes, **_raw(table.family_attributes)}
        configuration = {**configuration, **table.family_configuration}
    return types().TColumnFamilyDescriptor(
        name=found.name, attributes=attributes, configuration=configuration
    )


def _fits(found: HBaseTable, wanted: HBaseTable) -> bool:
    """True if there is nothing to change."""
    return (
        found.settings == wanted.settings
        and wanted.family_attributes.items() <= found.family_attributes.items()
        and wanted.family_configuration.items() <= found.family_configuration.items()
    )


def _region(table: str, encoded: Mapping[bytes, str], found: Any) -> Region:
    known, server = found.regionInfo, found.serverName
    start = known.startKey or b""
    return Region(
        table,
        encoded.get(start, ""),
        start,
        known.endKey or b"",
        f"{_text(server.hostName)}:{server.port}" if server is not None else "",
    )


def _raw(attributes: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in attributes.items()}


def _texts(attributes: Mapping[Any, Any] | None) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in (attributes or {}).items()}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
