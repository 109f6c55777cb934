"""A data source in Python that only hands out record batches: what Spark takes of rows at most.

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
_DIFFERENT = 16  # blocks: more than a core's cache holds
_BATCH_BYTES = 256 << 10
_FIRST_MS = 1_700_000_000_000


def stored_blocks(size: int, messages: int) -> list[StoredBlock]:
    """Different blocks of messages of `size` bytes, one behind the other."""
    texts = values(size, _DIFFERENT * messages)
    made = []
    for number in range(_DIFFERENT):
        first = number * messages
        block = encode(texts[first : first + messages])
        place(block, first)
        made.append(StoredBlock(0, _FIRST_MS + number, messages - 1, bytes(block)))
    return made


def of_size(folder: Path, size: int) -> tuple[str, int]:
    """A file for the option `file` of batches of 256 KiB, and how many messages of `size` bytes are
    in each."""
    file, messages = folder / f"batches{size}", _BATCH_BYTES // size
    write_batches(file, stored_blocks(size, messages))
    return str(file), messages


def write_batches(file: Path, blocks: list[StoredBlock]) -> None:
    """What blocks are as rows, a record batch for each, for the option `file`."""
    with (
        pa.OSFile(str(file), "wb") as out,
        pa.ipc.new_stream(out, arrow_schema(WantedColumns())) as made,
    ):
        for batch in batches(blocks, "t", 0, ALL, WantedColumns()):
            made.write_batch(batch)


class Bare(DataSource):
    """Options: `file`; `batches` for each thread, for each micro-batch of a stream; `times`, how
    many micro-batches there are."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bare"

    def schema(self) -> str:
        """The columns that are always there."""
        return spark_ddl(WantedColumns())

    def reader(self, schema: object) -> DataSourceReader:
        """All of it, once."""
        return BareReader(self.options["file"], int(self.options["batches"]))

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """The same, again and again."""
        options = self.options
        return BareStream(options["file"], int(options["batches"]), int(options["times"]))


class BareReader(DataSourceReader):
    """Each thread hands out as many batches as it is told."""

    def __init__(self, file: str, count: int) -> None:
        self._file = file
        self._count = count

    def partitions(self) -> list[InputPartition]:
        """One for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, over and over."""
        return _over_and_over(self._file, self._count)


class BareStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is how many micro-batches there have been."""

    def __init__(self, file: str, count: int, times: int) -> None:
        self._file = file
        self._count = count
        self._times = times

    def initialOffset(self) -> dict[str, int]:
        """None."""
        return {"times": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """One more, if there is one."""
        return {"times": min(start["times"] + 1, self._times)}

    def prepareForTriggerAvailableNow(self) -> None:
        """What there is, is known."""

    def reportLatestOffset(self) -> dict[str, int]:
        """All of them."""
        return {"times": self._times}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, over and over."""
        return _over_and_over(self._file, self._count)


def _over_and_over(file: str, count: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(file) as mapped:
        yield from islice(cycle(list(pa.ipc.open_stream(mapped))), count)
