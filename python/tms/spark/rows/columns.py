"""The columns of a row: names, types and order of Spark's Kafka source, so that its programs run
unchanged.

    key            binary          null: a message without a key
    value          binary          null: a tombstone
    topic          string
    partition      int
    offset         bigint          rises within a partition; gaps where nobody may see messages
    timestamp      timestamp       when it was published, in UTC
    timestampType  int             1: the time was given by the log, not by the producer
    headers        array<struct<key: string, value: binary>>   asked for; null: no headers
    id             string          asked for; the message id, 40 hexadecimal digits

Invariants

* `arrow_schema` and `spark_ddl` say the same; Spark compares them.
"""

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

LOG_APPEND_TIME = 1  # Kafka's number for it
HEADER = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
TIMESTAMP = pa.timestamp("us", tz="UTC")

_ALWAYS = (
    ("key", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("topic", pa.utf8(), "string"),
    ("partition", pa.int32(), "int"),
    ("offset", pa.int64(), "bigint"),
    ("timestamp", TIMESTAMP, "timestamp"),
    ("timestampType", pa.int32(), "int"),
)
_HEADERS = ("headers", HEADERS, "array<struct<key: string, value: binary>>")
_ID = ("id", pa.utf8(), "string")


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """Which of the columns that have to be asked for."""

    headers: bool = False
    message_id: bool = False


@cache
def arrow_schema(columns: WantedColumns) -> pa.Schema:
    """The schema of every record batch with these columns."""
    return pa.schema([(name, kind) for name, kind, _ in _chosen(columns)])


def spark_ddl(columns: WantedColumns) -> str:
    """The same schema as Spark writes it."""
    return ", ".join(f"{name} {kind}" for name, _, kind in _chosen(columns))


def _chosen(columns: WantedColumns) -> list[tuple[str, pa.DataType, str]]:
    chosen = [*_ALWAYS]
    if columns.headers:
        chosen.append(_HEADERS)
    if columns.message_id:
        chosen.append(_ID)
    return chosen
