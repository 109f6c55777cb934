"""The calls of HBase that TMS makes, in memory: cells with timestamps, removals that hide older
cells.

Stands in for the `Pool` of `tms.store.hbase`. Calls are counted and kept; `fail` scripts failures.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from tests.clocks import ManualClock
from tms.errors import StorageUnavailable
from tms.store.hbase.connection import Failure, types

Cells = dict[bytes, dict[int, bytes]]  # by qualifier and timestamp


class Called(NamedTuple):
    """A call."""

    method: str
    arguments: tuple[Any, ...]


class FakeHBase:
    """Tables in memory; `clock` is the region server's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.called: list[Called] = []
        self.late: list[Called] = []  # calls that failed and may still be delivered
        self._rows: dict[bytes, dict[bytes, Cells]] = defaultdict(dict)
        self._hidden: dict[tuple[bytes, bytes], int] = {}  # up to which timestamp, by row
        self._faults: list[tuple[str, bool, bool]] = []

    def fail(self, method: str, *, done: bool, said: bool = False) -> None:
        """Let the next call of a method fail: after it took effect, or before. With `said` it
        reports False instead of an error: HBase did it, and repeated it by itself."""
        self._faults.append((method, done, said))

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call like `Pool.call`: raises errors of TMS."""
        try:
            return self.attempt(method, *arguments, **options)
        except Failure as failure:
            raise failure.error from failure

    def attempt(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call like `Pool.attempt`."""
        self.called.append(Called(method, arguments))
        fault = next((one for one in self._faults if one[0] == method), None)
        if fault is None:
            return self._do(method, arguments)
        self._faults.remove(fault)
        _, done, said = fault
        if done:
            self._do(method, arguments)
        else:
            self.late.append(Called(method, arguments))
        if said:
            return False
        error = StorageUnavailable("The connection ended.")
        raise Failure(error, done=True, again=True)

    def deliver(self) -> None:
        """Carry out the calls that failed before they took effect."""
        for one in self.late:
            self._do(one.method, one.arguments)
        self.late.clear()

    def rows(self, table: str) -> dict[bytes, dict[bytes, bytes]]:
        """All rows that a reader sees."""
        found = {row: self._read(table.encode(), row) for row in sorted(self._rows[table.encode()])}
        return {
            row: {cell.qualifier: cell.value for cell in cells}
            for row, cells in found.items()
            if cells
        }

    def puts(self) -> list[tuple[bytes, bool]]:
        """The rows of all puts so far in order, and whether they were synced; forgets them."""
        synced = types().TDurability.FSYNC_WAL
        found = [
            (put.row, put.durability == synced)
            for one in self.called
            if one.method == "putMultiple"
            for put in one.arguments[1]
        ]
        self.called.clear()
        return found

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self.clock.pass_ms(1)
        table, *rest = arguments
        if method == "get":
            return self._result(table, rest[0].row)
        if method == "getMultiple":
            return [self._result(table, get.row) for get in rest[0]]
        if method == "putMultiple":
            for put in rest[0]:
                self._put(table, put)
            return None
        if method == "deleteMultiple":
            for gone in rest[0]:
                self._delete(table, gone)
            return []
        if method == "getScannerResults":
            return self._scan(table, rest[0], rest[1])
        assert method in ("checkAndPut", "checkAndDelete"), method
        row, _, qualifier, value, change = rest
        found = next((c.value for c in self._read(table, row) if c.qualifier == qualifier), None)
        if found != value:
            return False
        (self._put if method == "checkAndPut" else self._delete)(table, change)
        return True

    def _put(self, table: bytes, put: Any) -> None:
        cells = self._rows[table].setdefault(put.row, {})
        for cell in put.columnValues:
            stamp = self.clock.now_ms() if put.timestamp is None else put.timestamp
            cells.setdefault(cell.qualifier, {})[stamp] = cell.value

    def _delete(self, table: bytes, gone: Any) -> None:
        if gone.columns:
            cells = self._rows[table].get(gone.row, {})
            for column in gone.columns:
                versions = cells.get(column.qualifier, {})
                for stamp in [stamp for stamp in versions if stamp <= gone.timestamp]:
                    del versions[stamp]
            return
        key = table, gone.row
        self._hidden[key] = max(self._hidden.get(key, -1), gone.timestamp)

    def _read(self, table: bytes, row: bytes) -> list[Any]:
        found = []
        for qualifier, versions in sorted(self._rows[table].get(row, {}).items()):
            stamp = max(versions, default=-1)
            if stamp > self._hidden.get((table, row), -1):
                found.append(
                    types().TColumnValue(
                        family=b"m", qualifier=qualifier, value=versions[stamp], timestamp=stamp
                    )
                )
        return found

    def _result(self, table: bytes, row: bytes) -> Any:
        cells = self._read(table, row)
        return types().TResult(row=row if cells else None, columnValues=cells)

    def _scan(self, table: bytes, scan: Any, count: int) -> list[Any]:
        first, last = scan.startRow, scan.stopRow
        if scan.reversed:
            rows = [r for r in sorted(self._rows[table], reverse=True) if last < r <= first]
        else:
            rows = [r for r in sorted(self._rows[table]) if first <= r < last]
        found = [one for row in rows if (one := self._result(table, row)).row is not None][:count]
        if scan.filterString == b"KeyOnlyFilter(true)":
            for one in found:
                for cell in one.columnValues:
                    cell.value = len(cell.value).to_bytes(4, "big")
        return found
