"""The cost of an archive, beside writing rows that Spark has in its memory.

    archive   `tms.spark.jobs.archive`: a topic of the service to Parquet by topic and day
    memory    the same rows, cached by Spark, with the same options to the same layout

Both write with zstd, one file for each of Spark's threads. An archive begins with about 1.6 s in
which Spark starts a stream and its Python processes, whatever the size of the archive.
"""

from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.spark.common import MIB, THREADS, drain, pid, session
from bench.spark.topics import filled
from bench.targets import Service, Setup
from tms.spark.jobs import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE, MEMORY = "archive", "memory"
GOAL = Goal(at_least=0.6)
SIZES = (100, 1 << 10)  # bytes of a message
_OPTIONS = {
    "spark.driver.memory": "6g",
    "spark.sql.maxConcurrentOutputFileWriters": "1000",  # as for an archive: no sort by day
}
_DAY = "CAST(timestamp AS DATE) AS date"
_COLUMNS = {"includeHeaders": "true", "includeMessageId": "true"}


def run(setup: Setup, report: Report) -> None:
    """A topic to Parquet, beside rows in memory to Parquet."""
    report.title("A topic archived as Parquet, beside the same rows written from Spark's memory")
    with (
        setup.directory() as directory,
        Service.start(directory) as service,
        session(directory, **_OPTIONS) as spark,
    ):
        for size in SIZES:
            _compare(setup, report, spark, directory, service, size)


def _compare(
    setup: Setup,
    report: Report,
    spark: "SparkSession",
    directory: Path,
    service: Service,
    size: int,
) -> None:
    rows = (128 if setup.quick else 1_024) * MIB // size
    topic = filled(service.bus, f"archive{size}", size, rows)
    reader = spark.read.format("tms").options(subscribe=topic, **_COLUMNS)
    cached = reader.option("tms.url", service.url).load().selectExpr("*", _DAY)
    cached = cached.persist(StorageLevel.MEMORY_ONLY)
    drain(cached)
    runs = count()

    def save(target: Path) -> int:
        writer = cached.write.partitionBy("topic", "date").option("compression", "zstd")
        writer.parquet(str(target))
        return rows

    def keep(target: Path) -> int:
        of_a_file = -(-rows // THREADS)
        done = archive(
            spark,
            topic,
            str(target),
            service.url,
            rows_per_batch=rows,
            rows_per_file=of_a_file,
        )
        assert done.rows == rows, f"archived {done.rows} of {rows} rows"
        return rows

    def written(kind: str) -> Sample:
        target = directory / f"{kind}{size}-{next(runs)}"
        work = partial(keep if kind == ARCHIVE else save, target)
        return measured(work, pid(spark), service.pid)

    variants = {kind: partial(written, kind) for kind in (ARCHIVE, MEMORY)}
    for kind in variants:  # Java compiles hot code
        written(kind)
    samples = interleaved(variants, setup.runs)
    cached.unpersist()
    for kind, its in samples.items():
        rate = median(its, lambda s: s.per_s * size / MIB)
        report.line("spark_archive", f"{size} B messages, {kind}", rate, "MiB/s", None, {kind: its})
    share = ratio(samples, ARCHIVE, MEMORY)
    report.line("spark_archive", f"{size} B messages, archive ÷ memory", share, "×", GOAL, samples)
