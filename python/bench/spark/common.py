"""Shared parts of the benchmarks in Spark: the session, and reading all rows of a DataFrame."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tms.spark
from bench.report import Report, Samples, median

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
THREADS = 2
_OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}


@contextlib.contextmanager
def session(
    directory: Path, zookeeper: str | None = None, **options: str
) -> Iterator["SparkSession"]:
    """A session with `THREADS` threads, whose files are in `directory`."""
    options = _OPTIONS | {"spark.local.dir": str(directory)} | options
    spark = tms.spark.session(f"local[{THREADS}]", "bench", zookeeper=zookeeper, **options)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def drain(rows: Any) -> int:
    """Read every row of a DataFrame, and discard it."""
    rows.write.format("noop").mode("overwrite").save()
    return 1


def report_bytes(report: Report, benchmark: str, samples: Samples, message_bytes: int) -> None:
    """Add the rate in bytes, and the CPU of Spark beside it, of every variant."""
    for kind, its in samples.items():
        rate = median(its, lambda s: s.per_s * message_bytes / MIB)
        report.line(benchmark, kind, rate, "MiB/s", None, {kind: its})
        report.line(benchmark, f"{kind}, CPU of Spark", median(its, lambda s: s.cpu_s), "s")


def pid(spark: "SparkSession") -> int:
    """The id of Java's process."""
    found: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return found
