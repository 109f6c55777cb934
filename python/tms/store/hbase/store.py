"""The store of maps in HBase, by name.

Invariants

* `!map/NAME` in the metadata table says that a map exists; the first process that writes it has
  created the map.
* A map of blocks that is dropped loses its name only: the coprocessor drops its rows with their
  segment, day or topic. Numbers of segments and topics are not used twice. Rows that exist when a
  map is created are left alone: they may belong to another process, which has just created the map.
* A map of records loses its rows, then its name.
* Other processes may write to the same store (`shared`): the owners settle who owns a map.
"""

import threading
from dataclasses import replace

import msgspec

from tms.errors import Closed, ConfigError, Conflict, NotFound, TMSError
from tms.model.topic import Durability
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.tls import ClientTls
from tms.store.base import StoreImage, check_name
from tms.store.hbase.admin import CONFIG, Admin
from tms.store.hbase.blocks import ROW_BYTES_FIRST, BlockMap, MapNote, NotedMap
from tms.store.hbase.connection import INSTALL, types
from tms.store.hbase.coprocessor import CoprocessorWatch
from tms.store.hbase.pool import HBasePlace, Limits, Pool
from tms.store.hbase.records import RecordMap
from tms.store.hbase.rows import MESSAGES, METADATA, NAMES, TABLES, RecordRows, rows_of, table_name

CHECK_S = 10.0  # without a successful call, after which health is checked
RETRY_S = 1.0
_CHECKED = b"checked"


class HBaseStore:
    """Maps in the tables of one namespace of HBase, over its Thrift 2 servers. `watched`: the store
    watches the coprocessor, for `warnings`.

    Raises `ConfigError` if the address is wrong, or the tables are missing; `StorageUnavailable` if
    HBase does not answer in time.
    """

    shared = True
    immediate = Durability.NONE

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        watched: bool = True,
        tls: ClientTls | None = None,
    ) -> None:
        self.place = HBasePlace.parse(url, tls)
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._pool = Pool(self.place, self._clock, self._limits)
        metadata = table_name(self.place.namespace, METADATA)
        self._names = RecordMap(self._pool, RecordRows(metadata, NAMES))
        self._lock = threading.Lock()  # guards all below
        self._maps: dict[str, BlockMap | RecordMap] = {}
        self._closed = False
        self._checking = False
        self._check_at_s = float("-inf")
        self._admin = Admin(self.place, self._clock, replace(self._limits, connections_max=2))
        self._coprocessor = CoprocessorWatch(self._admin, self._clock)
        try:
            self._require_tables()
        except BaseException:
            self._pool.close()
            raise
        if watched:
            self._coprocessor.warnings()  # starts the first look

    def open(self, name: str, create: bool) -> BlockMap | RecordMap:
        """The map with this name; raises `NotFound` or `Conflict`."""
        check_name(name)
        with self._lock:
            self._require_open()
            found = self._maps.get(name)
        if create:
            return self._made(name, found is not None)
        if found is None:
            note = self._names.get(name.encode())
            if note is None:
                raise NotFound(f"There is no map {name} in {self.place}.")
            found = self._map(name, note, created=False)
            with self._lock:
                self._require_open()
                found = self._maps.setdefault(name, found)
        return found

    def drop(self, name: str) -> None:
        """Remove the map."""
        check_name(name)
        with self._lock:
            self._require_open()
            found = self._maps.pop(name, None)
        if found is not None:
            found.end(NotFound(f"The map {name} was dropped."))
        rows = rows_of(self.place.namespace, name)
        if isinstance(rows, RecordRows):
            RecordMap(self._pool, rows).drop_rows()
        self._names.delete([name.encode()])

    def close_maps(self, prefix: str) -> None:
        """Nothing to do: other processes write to the same rows."""

    def image(self) -> StoreImage:
        """Raises `Conflict`: HBase has snapshots of its own."""
        raise Conflict(
            "What is in HBase is backed up there: take a snapshot of every table of the namespace.",
            next="docs/operations.md says how, under Backup",
        )

    def names(self, prefix: str) -> list[str]:
        """Names of existing maps that begin with `prefix`, sorted."""
        with self._lock:
            self._require_open()
        return [key.decode(errors="replace") for key in self._names.keys(prefix.encode())]

    def healthy(self) -> str | None:
        """None, or the reason why the store cannot write: the newest failure, until a call
        succeeds. Without a recent call, one is made in the background."""
        pool = self._pool
        failure = pool.write_failure or pool.read_failure
        now_s = self._clock.monotonic_s()
        with self._lock:
            due = failure is not None or now_s - pool.succeeded_s > CHECK_S
            if due and not self._checking and not self._closed and now_s >= self._check_at_s:
                self._checking = True
                self._check_at_s = now_s + RETRY_S
                threading.Thread(target=self._check, name="tms-hbase-check", daemon=True).start()
            maps = list(self._maps.values())
        if failure is not None:
            return failure.message
        return next((reason for one in maps if (reason := one.hopeless) is not None), None)

    @property
    def foreign_rows(self) -> int:
        """Number of rows that were skipped because they are not rows of the maps that they lie
        in."""
        with self._lock:
            return sum(one.foreign_rows for one in self._maps.values() if isinstance(one, BlockMap))

    def warnings(self) -> list[str]:
        """The warnings of the last look at the coprocessor, and rows that are not TMS's."""
        found = self._coprocessor.warnings()
        foreign = self.foreign_rows
        if foreign:
            found.append(
                f"{foreign} rows below prefixes of TMS are not its own, or damaged; they are never "
                "delivered. The log names their maps (`foreign rows skipped`)."
            )
        return found

    def cleaned_ms(self) -> int | None:
        """The time in ms up to which all regions are clean."""
        return self._coprocessor.cleaned_ms()

    def default_retention_ms(self) -> int | None:
        """The retention in the attributes of the table of messages."""
        return self._admin.table(MESSAGES).ttl_ms

    def volume(self) -> None:
        """None: HBase spreads its data over many."""
        return None

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for one in self._maps.values():
                one.end(self._closed_error())
        self._coprocessor.close()
        self._pool.close()
        self._admin.close()

    def _made(self, name: str, known: bool) -> BlockMap | RecordMap:
        note = msgspec.json.encode(
            MapNote(created_ms=self._clock.now_ms(), row_bytes_max=ROW_BYTES_FIRST)
        )
        made = self._map(name, note, created=True)
        if known or not self._names.compare_and_set(name.encode(), None, note):
            raise Conflict(f"The map {name} exists already.")
        with self._lock:
            self._require_open()
            self._maps[name] = made
        return made

    def _map(self, name: str, note: bytes, created: bool) -> BlockMap | RecordMap:
        rows = rows_of(self.place.namespace, name)
        if isinstance(rows, RecordRows):
            return RecordMap(self._pool, rows)
        noted = NotedMap(self._names, name.encode(), note)
        return BlockMap(self._pool, rows, noted, self._clock, created)

    def _require_tables(self) -> None:
        namespace = self.place.namespace
        missing = [
            name
            for name in TABLES
            if not self._pool.call(
                "tableExists",
                types().TTableName(ns=namespace.encode(), qualifier=name.encode()),
                repeatable=True,
            )
        ]
        if missing:
            raise ConfigError(
                f"The namespace {namespace} of HBase has no table {', '.join(missing)} "
                f"({self.place}). {INSTALL}"
            )

    def _check(self) -> None:
        """Read from every table, and write if the last write failed; the pool records the
        outcome."""
        limit_s = self._limits.connect_s
        try:
            for name in TABLES:
                wanted = types().TGet(row=CONFIG + _CHECKED)
                table = table_name(self.place.namespace, name)
                self._pool.call("get", table, wanted, repeatable=True, call_s=limit_s)
            if self._pool.write_failure is not None:
                metadata = table_name(self.place.namespace, METADATA)
                notes = RecordMap(self._pool, RecordRows(metadata, CONFIG))
                notes.write([(_CHECKED, b"%d" % self._clock.now_ms())], Durability.SYNCED)
        except TMSError:
            pass
        finally:
            with self._lock:
                self._checking = False

    def _require_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        return Closed(f"The store at {self.place} is closed; open it again.")
