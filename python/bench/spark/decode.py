"""What decoding costs on the way into Spark: blocks to rows, beside batches that are rows already.

    rows    blocks of 256 KiB in the memory of a worker, decoded by `tms.spark.rows`
    bare    the record batches that come out of that, made ahead: what Spark takes at most

Both are data sources in Python on two threads, read into Spark's noop sink, which reads every row.
Nothing is stored and nothing crosses a network: that would hide what is measured.
"""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.spark.common import MIB, THREADS, drain, pid, session
from bench.targets import Setup, values
from tms.model.block import encode, place
from tms.model.log import StoredBlock
from tms.spark.rows import Columns, arrow_schema, batches, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, BARE = "rows", "bare"
BLOCK_BYTES = 256 << 10
GOAL_OF_SHARE = Goal(at_least=0.8)
_GOALS = {100: Goal(at_least=250), 1 << 10: Goal(at_least=400)}  # MiB/s by bytes of a message
_DIFFERENT = 16  # blocks: more than a core's cache holds
_ALL = 1 << 62
_FIRST_MS = 1_700_000_000_000


class Blocks(DataSource):
    """Rows or bare batches of the blocks in a file, over and over."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "blocks"

    def schema(self) -> str:
        """The columns that are always there."""
        return spark_ddl(Columns())

    def reader(self, schema: object) -> DataSourceReader:
        """Options: `file`, `blocks` for each thread, `as` rows or bare."""
        return BlocksReader(self.options["file"], int(self.options["blocks"]), self.options["as"])


class BlocksReader(DataSourceReader):
    """Each thread reads as many blocks as it is told."""

    def __init__(self, file: str, blocks: int, kind: str) -> None:
        self._file = Path(file)
        self._blocks = blocks
        self._kind = kind

    def partitions(self) -> list[InputPartition]:
        """One for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches; those that are bare are made before the first one is asked for."""
        stored = pickle.loads(self._file.read_bytes())
        if self._kind == ROWS:
            return batches(islice(cycle(stored), self._blocks), "t", 0, _ALL, Columns())
        return islice(cycle(_copied(stored)), self._blocks)


def _copied(stored: list[StoredBlock]) -> list[pa.RecordBatch]:
    """Batches in memory of their own, as if never anybody had heard of blocks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema(Columns())) as writer:
        for batch in batches(stored, "t", 0, _ALL, Columns()):
            writer.write_batch(batch)
    return list(pa.ipc.open_stream(sink.getvalue()))


def run(setup: Setup, report: Report) -> None:
    """Blocks to rows in Spark, beside bare batches."""
    report.title("Blocks of 256 KiB to rows in Spark, beside ready record batches")
    with setup.directory() as directory, session(directory) as spark:
        spark.dataSource.register(Blocks)
        for size, goal in _GOALS.items():
            _compare(setup, report, spark, directory, size, goal)


def _compare(
    setup: Setup, report: Report, spark: "SparkSession", directory: Path, size: int, goal: Goal
) -> None:
    file, messages = directory / f"blocks{size}", BLOCK_BYTES // size
    file.write_bytes(pickle.dumps(_blocks(size, messages)))
    blocks = (256 if setup.quick else 1_024) * MIB // BLOCK_BYTES // THREADS

    def read(kind: str, blocks: int) -> Sample:
        reader = spark.read.format("blocks").options(file=str(file), blocks=blocks)
        rows = reader.option("as", kind).load()
        sample = measured(lambda: drain(rows), pid(spark))
        return replace(sample, messages=blocks * THREADS * messages)

    variants = {kind: partial(read, kind, blocks) for kind in (ROWS, BARE)}
    for kind in variants:  # Java compiles what it meets often
        read(kind, blocks)
    samples = interleaved(variants, setup.runs)
    label = f"{size} B messages"
    for kind, its in samples.items():
        rate = median(its, lambda s: s.per_s * size / MIB)
        judged = goal if kind == ROWS else None
        report.line("spark", f"{label}, {kind}", rate, "MiB/s", judged, {kind: its})
    share = ratio(samples, ROWS, BARE)
    report.line("spark", f"{label}, rows ÷ bare", share, "×", GOAL_OF_SHARE, samples)


def _blocks(size: int, messages: int) -> list[StoredBlock]:
    """Different blocks, one behind the other."""
    texts = values(size, _DIFFERENT * messages)
    made = []
    for number in range(_DIFFERENT):
        first = number * messages
        block = encode(texts[first : first + messages])
        place(block, first)
        made.append(StoredBlock(0, _FIRST_MS + number, messages - 1, bytes(block)))
    return made
