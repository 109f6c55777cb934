"""Messages as tables of Arrow, pandas and Polars.

Invariants

* The columns are those of a fetch as an Arrow stream: id, partition, offset, timestamp, key, value
  and headers, in this order and with these types, also of a table without rows.
* A table is whole: whoever asks a consumer for one gets all up to its end.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tms.api.messages import arrow_schema
from tms.block.arrow import library
from tms.errors import Invalid
from tms.runtime.extras import needed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class HasColumns(Protocol):
    """A batch."""

    def to_arrow(self) -> "pa.RecordBatch": ...


def as_table(batches: Iterable[HasColumns]) -> "pa.Table":
    """The batches as one table."""
    parts = [batch.to_arrow() for batch in batches]
    return library().Table.from_batches(parts, schema=arrow_schema())


def as_pandas(table: "pa.Table") -> "pd.DataFrame":
    """The table for pandas. Raises `ConfigError` without pandas."""
    with needed("to_pandas()", "pandas"):
        import pandas  # noqa: F401
    frame: pd.DataFrame = table.to_pandas()
    return frame


def as_polars(table: "pa.Table") -> "pl.DataFrame":
    """The table for Polars. Raises `ConfigError` without Polars."""
    with needed("to_polars()", "polars"):
        import polars
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame), "of a table it makes a frame"
    return frame


def require_end(stop_at_end: bool) -> None:
    """Raises `Invalid` for a consumer that goes on at the end, of which no table would be whole."""
    if not stop_at_end:
        raise Invalid(
            "This consumer waits for more at the end, so its table would never be whole. Make it "
            "with stop_at_end=True, or take a table of each of its batches().",
            field="stop_at_end",
        )
