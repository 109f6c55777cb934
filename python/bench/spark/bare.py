"""A data source in Python that only hands out record batches: the upper bound of rows that Spark
takes.

The batches are made ahead, in a file that workers map; nothing is decoded, no network is crossed.
"""

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from bench.spark.common import THREADS
from bench.targets import values
from tms.block import encode, place
from tms.model.message import StoredBlock
from tms.spark.rows import WantedColumns, arrow_schema, batches, spark_ddl

ALL = 1 << 62  # before any undecided message
_DIFFERENT = 16  # blocks: more than fit into a core's cache
_BATCH_BYTES = 256 << 10
_FIRST_MS = 1_700_000_000_000


def stored_blocks(size: int, messages: int) -> list[StoredBlock]:
    """Different blocks of messages of `size` bytes, one after the other."""
    texts = values(size, _DIFFERENT * messages)
    made = []
    for number in range(_DIFFERENT):
        first = number * messages
        block = encode(texts[first : first + messages])
        place(block, first)
        made.append(StoredBlock(0, _FIRST_MS + number, messages - 1, bytes(block)))
    return made


def of_size(folder: Path, size: int) -> tuple[str, int]:
    """A file for the option `file` of batches of 256 KiB, and the number of messages of `size`
    bytes in each."""
    file, messages = folder / f"batches{size}", _BATCH_BYTES // size
    write_batches(file, stored_blocks(size, messages))
    return str(file), messages


def write_batches(file: Path, blocks: list[StoredBlock]) -> None:
    """Write the rows of blocks to a file for the option `file`, a record batch for each block."""
    with (
        pa.OSFile(str(file), "wb") as out,
        pa.ipc.new_stream(out, arrow_schema(WantedColumns())) as made,
    ):
        for batch in batches(blocks, "t", 0, ALL, WantedColumns()):
            made.write_batch(batch)


class Bare(DataSource):
    """Options: `file`; `batches` for each thread, for each micro-batch of a stream; `times`, the
    number of micro-batches."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bare"

    def schema(self) -> str:
        """The columns that every schema has."""
        return spark_ddl(WantedColumns())

    def reader(self, schema: object) -> DataSourceReader:
        """A reader of everything, once."""
        return BareReader(self.options["file"], int(self.options["batches"]))

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """A stream of everything, again and again."""
        options = self.options
        return BareStream(options["file"], int(options["batches"]), int(options["times"]))


class BareReader(DataSourceReader):
    """Each thread hands out `batches` batches."""

    def __init__(self, file: str, count: int) -> None:
        self._file = file
        self._count = count

    def partitions(self) -> list[InputPartition]:
        """A partition for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, over and over."""
        return _over_and_over(self._file, self._count)


class BareStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose offset is the number of micro-batches so far."""

    def __init__(self, file: str, count: int, times: int) -> None:
        self._file = file
        self._count = count
        self._times = times

    def initialOffset(self) -> dict[str, int]:
        """The offset before the first micro-batch."""
        return {"times": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The offset after one more micro-batch, if there is one."""
        return {"times": min(start["times"] + 1, self._times)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the end is known."""

    def reportLatestOffset(self) -> dict[str, int]:
        """The offset after all micro-batches."""
        return {"times": self._times}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A partition for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, over and over."""
        return _over_and_over(self._file, self._count)


def _over_and_over(file: str, count: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(file) as mapped:
        yield from islice(cycle(list(pa.ipc.open_stream(mapped))), count)
