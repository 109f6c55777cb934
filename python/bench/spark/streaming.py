"""The cost of a stream from a topic, beside a stream of batches that are rows already.

    topic   the data source `tms` over the service, 64 MiB of messages to a micro-batch
    bare    as many rows from a data source that has them in memory: the upper bound of Spark

The time is Spark's own, of whole micro-batches: planning, reading, both logs of the checkpoint. The
first micro-batches are not counted, because Java compiles hot code meanwhile.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import Goal, Report, Sample, interleaved, measured, median, ratio
from bench.spark.bare import Bare, of_size
from bench.spark.common import MIB, THREADS, pid, session
from bench.spark.topics import PARTITIONS, filled
from bench.targets import Service, Setup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, BARE = "topic", "bare"
GOAL = Goal(at_most=2)
BATCH_BYTES = 64 * MIB
SIZES = (100, 1 << 10)  # bytes of a message
FIRST = 2  # micro-batches that do not count
_BATCH_S = "batch_s"


def run(setup: Setup, report: Report) -> None:
    """Micro-batches of a topic, beside bare ones."""
    report.title("Micro-batches of 64 MiB from a topic, beside ready record batches")
    with (
        setup.directory() as directory,
        Service.start(directory) as service,
        session(directory) as spark,
    ):
        spark.dataSource.register(Bare)
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
    times, rows = FIRST + (3 if setup.quick else 8), BATCH_BYTES // size
    topic = filled(service.bus, f"stream{size}", size, rows * times)
    file, messages = of_size(directory, size)
    bare: dict[str, Any] = {"file": file, "batches": rows // messages // THREADS, "times": times}
    reads: dict[str, Any] = {
        "tms.url": service.url,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": rows,
    }
    sources: dict[str, Callable[[], DataFrame]] = {
        TOPIC: lambda: spark.readStream.format("tms").options(**reads).load(),
        BARE: lambda: spark.readStream.format("bare").options(**bare).load(),
    }
    runs = count()

    def stream(kind: str) -> Sample:
        checkpoint = directory / f"checkpoint-{size}-{kind}-{next(runs)}"
        return streamed(spark, sources[kind](), checkpoint, service.pid)

    samples = interleaved({kind: partial(stream, kind) for kind in sources}, setup.runs)
    label = f"micro-batch of 64 MiB, {size} B messages in {PARTITIONS} partitions"
    for kind, its in samples.items():
        one = median(its, lambda s: s.more[_BATCH_S])
        report.line("spark_stream", f"{label}, {kind}", one, "s", None, {kind: its})
    share = ratio(samples, TOPIC, BARE, lambda s: s.more[_BATCH_S])
    report.line("spark_stream", f"{label}, topic ÷ bare", share, "×", GOAL, samples)


def streamed(spark: "SparkSession", rows: "DataFrame", checkpoint: Path, *pids: int) -> Sample:
    """Read all rows of a stream, and discard them; the sample counts the micro-batches after the
    first ones, with their share of all CPU time."""
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    done: list[tuple[int, float]] = []

    def work() -> int:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        for one in query.recentProgress:
            if one["numInputRows"]:
                done.append((one["numInputRows"], one["durationMs"]["triggerExecution"] / 1_000))
        return sum(rows for rows, _ in done)

    sample = measured(work, pid(spark), *pids)
    most = max(rows for rows, _ in done)
    counted = [one for one in done[FIRST:] if one[0] > most * 0.9]
    assert counted, f"no whole micro-batch behind the first {FIRST}: {done}"
    messages, wall_s = sum(rows for rows, _ in counted), sum(seconds for _, seconds in counted)
    return replace(
        sample,
        wall_s=wall_s,
        cpu_s=sample.cpu_s * messages / sample.messages,
        messages=messages,
        more={**sample.more, _BATCH_S: wall_s / len(counted)},
    )
