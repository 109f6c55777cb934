"""A connection to HBase's Thrift 2 gateway, as small as tests need it: it knows thriftpy2.

    with Gateway(host, port, types) as gateway:
        gateway.create_table("ns:rows", "m")
        gateway.put("ns:rows", {b"row": {b"m:b": b"value"}})
        gateway.scan("ns:rows")

Rows are dicts of columns, `family:qualifier` → value. An error that HBase answers is raised as
thriftpy2 makes it (`types.TIOError`); a connection that fails is not used again.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import thriftpy2
from thriftpy2.rpc import make_client

from integration.cluster.runtime import Runtime

CALL_S = 40  # more than the gateway itself waits for HBase
SCAN_ROWS = 1000

Row = dict[bytes, bytes]


def load_types(runtime: Runtime) -> Any:
    """The module of HBase's Thrift 2 types, from the IDL in the gateway's jar."""
    member = "org/apache/hadoop/hbase/thrift2/hbase.thrift"
    with tempfile.TemporaryDirectory() as directory:
        path = runtime.extract("hbase-thrift-*.jar", member, Path(directory) / "hbase.thrift")
        return thriftpy2.load(str(path), module_name="tms_integration_hbase_thrift")


class Gateway:
    """One connection. Not thread-safe; `call` reaches every method of the IDL."""

    def __init__(self, host: str, port: int, types: Any, timeout_s: float | None = None) -> None:
        self.types = types
        timeout_ms = int((timeout_s or CALL_S) * 1000)
        self._client = make_client(types.THBaseService, host, port, timeout=timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call any method of THBaseService."""
        return getattr(self._client, method)(*arguments)

    def create_namespace(self, name: str) -> None:
        self.call("createNamespace", self.types.TNamespaceDescriptor(name=name))

    def drop_namespace(self, name: str) -> None:
        """Drop the namespace with every table in it."""
        self.drop_tables(name)
        self.call("deleteNamespace", name)

    def drop_tables(self, namespace: str) -> None:
        """Drop every table of a namespace."""
        for table in self.call("getTableNamesByNamespace", namespace):
            if self.call("isTableEnabled", table):
                self.call("disableTable", table)
            self.call("deleteTable", table)

    def namespaces(self) -> list[str]:
        return [_text(one.name) for one in self.call("listNamespaceDescriptors")]

    def create_table(
        self,
        name: str,
        *families: str,
        split_keys: Sequence[bytes] = (),
        attributes: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Create a table; returns when it is ready."""
        table = self.types.TTableDescriptor(
            tableName=self.table_name(name),
            columns=[self.types.TColumnFamilyDescriptor(name=one.encode()) for one in families],
            attributes=dict(attributes or {}),
        )
        self.call("createTable", table, list(split_keys))

    def put(self, table: str, rows: Mapping[bytes, Mapping[bytes, bytes]]) -> None:
        """Store rows; returns when HBase has acknowledged all of them."""
        puts = [
            self.types.TPut(
                row=key,
                columnValues=[
                    self.types.TColumnValue(
                        family=column.partition(b":")[0],
                        qualifier=column.partition(b":")[2],
                        value=value,
                    )
                    for column, value in row.items()
                ],
            )
            for key, row in rows.items()
        ]
        self.call("putMultiple", table.encode(), puts)

    def get(self, table: str, key: bytes) -> Row:
        """A row; empty if it does not exist."""
        return _columns(self.call("get", table.encode(), self.types.TGet(row=key)))

    def scan(self, table: str, attributes: Mapping[bytes, bytes] | None = None) -> dict[bytes, Row]:
        """Every row of a table."""
        found: dict[bytes, Row] = {}
        start = b""
        while True:
            scan = self.types.TScan(
                startRow=start,
                caching=SCAN_ROWS,
                limit=SCAN_ROWS,
                attributes=dict(attributes or {}),
            )
            results = self.call("getScannerResults", table.encode(), scan, SCAN_ROWS)
            found |= {one.row: _columns(one) for one in results}
            if len(results) < SCAN_ROWS:
                return found
            start = results[-1].row + b"\0"

    def clear(self, table: str) -> None:
        """Delete every row of a table."""
        while rows := self.call("getScannerResults", table.encode(), self._keys_only(), SCAN_ROWS):
            gone = [self.types.TDelete(row=one.row) for one in rows]
            self.call("deleteMultiple", table.encode(), gone)

    def _keys_only(self) -> Any:
        return self.types.TScan(
            limit=SCAN_ROWS,
            filterString=b"KeyOnlyFilter() AND FirstKeyOnlyFilter()",
            attributes={b"tms.isolation": b"uncommitted"},
        )

    def table_name(self, name: str) -> Any:
        namespace, _, qualifier = name.rpartition(":")
        return self.types.TTableName(ns=namespace.encode() or None, qualifier=qualifier.encode())


def _columns(result: Any) -> Row:
    cells: Iterable[Any] = result.columnValues
    return {cell.family + b":" + cell.qualifier: cell.value for cell in cells}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
