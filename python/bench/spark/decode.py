"""The cost of decoding on the way into Spark: blocks to rows, beside batches that are rows already.

    rows    blocks of 256 KiB in the memory of a worker, decoded by `tms.spark.rows`
    bare    the record batches that result from it, made ahead: the upper bound of Spark

Both are data sources in Python on two threads, read into Spark's noop sink, which reads every row.
The benchmark neither stores anything nor crosses a network: that would hide the cost of decoding.
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
from bench.spark.bare import ALL, Bare, stored_blocks, write_batches
from bench.spark.common import MIB, THREADS, drain, pid, session
from bench.targets import Setup
from tms.spark.rows import WantedColumns, batches, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, BARE = "rows", "bare"
BLOCK_BYTES = 256 << 10
GOAL_OF_SHARE = Goal(at_least=0.8)
_GOALS = {100: Goal(at_least=250), 1 << 10: Goal(at_least=400)}  # MiB/s by bytes of a message


class Blocks(DataSource):
    """The rows of the blocks in a file, over and over."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "blocks"

    def schema(self) -> str:
        """The columns that every schema has."""
        return spark_ddl(WantedColumns())

    def reader(self, schema: object) -> DataSourceReader:
        """Options: `file`, `blocks` for each thread."""
        return BlocksReader(self.options["file"], int(self.options["blocks"]))


class BlocksReader(DataSourceReader):
    """Each thread reads `blocks` blocks."""

    def __init__(self, file: str, blocks: int) -> None:
        self._file = Path(file)
        self._blocks = blocks

    def partitions(self) -> list[InputPartition]:
        """A partition for each thread."""
        return [InputPartition(number) for number in range(THREADS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows, decoded as they are pulled."""
        stored = pickle.loads(self._file.read_bytes())
        return batches(islice(cycle(stored), self._blocks), "t", 0, ALL, WantedColumns())


def run(setup: Setup, report: Report) -> None:
    """Blocks to rows in Spark, beside bare batches."""
    report.title("Blocks of 256 KiB to rows in Spark, beside ready record batches")
    with setup.directory() as directory, session(directory) as spark:
        for source in (Blocks, Bare):
            spark.dataSource.register(source)
        for size, goal in _GOALS.items():
            _compare(setup, report, spark, directory, size, goal)


def _compare(
    setup: Setup, report: Report, spark: "SparkSession", directory: Path, size: int, goal: Goal
) -> None:
    messages = BLOCK_BYTES // size
    stored = stored_blocks(size, messages)
    blocks_file, batches_file = directory / f"blocks{size}", directory / f"batches{size}"
    blocks_file.write_bytes(pickle.dumps(stored))
    write_batches(batches_file, stored)
    blocks = (256 if setup.quick else 1_024) * MIB // BLOCK_BYTES // THREADS
    sources = {
        ROWS: spark.read.format("blocks").options(file=str(blocks_file), blocks=blocks).load(),
        BARE: spark.read.format("bare").options(file=str(batches_file), batches=blocks).load(),
    }

    def read(kind: str) -> Sample:
        sample = measured(lambda: drain(sources[kind]), pid(spark))
        return replace(sample, messages=blocks * THREADS * messages)

    variants = {kind: partial(read, kind) for kind in sources}
    for kind in variants:  # Java compiles hot code
        read(kind)
    samples = interleaved(variants, setup.runs)
    label = f"{size} B messages"
    for kind, its in samples.items():
        rate = median(its, lambda s: s.per_s * size / MIB)
        judged = goal if kind == ROWS else None
        report.line("spark", f"{label}, {kind}", rate, "MiB/s", judged, {kind: its})
    share = ratio(samples, ROWS, BARE)
    report.line("spark", f"{label}, rows ÷ bare", share, "×", GOAL_OF_SHARE, samples)
