"""A driver of Spark that writes to topics, for tests that kill it and its executors.

    streaming.py stream MASTER URL FOLDER LIFE    from `in` to `out`, until it has read all that was
                                                  in the topic when the query began
    streaming.py batch MASTER URL FOLDER LIFE     a batch query that writes `ROWS` rows to `batch`

    FOLDER/checkpoint                       of the stream, the same in every life
    FOLDER/reads/LIFE.BATCH.TASK.ATTEMPT    the rows read by an attempt of a task, noted before they
                                            are passed on: a line for each, `END` at the end
    FOLDER/LIFE.failed                      a line for each time that the query has failed; it is
                                            started again
    FOLDER/LIFE                             Spark's own files

A line of a read row is `BATCH PARTITION OFFSET VALUE`, the value in hexadecimal digits, `-` for a
tombstone. It is also the value of the message that is written.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import tms.spark
from tests.spark_kit import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_MAX = 4
OFFSETS = 40  # of a batch of the stream, in three partitions
TASKS, ROWS, ROW_BYTES = 4, 6_000, 4_000  # of the batch query
REQUESTS = 2 * TASKS  # that stage it, a task holds 6 MB
END = "end"
BATCH_ID = "streaming.sql.batchId"

Noting = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stream(spark: "SparkSession", url: str, folder: Path, life: str) -> None:
    """Run the stream until it has read all present messages."""
    from pyspark.errors import StreamingQueryException

    reader = spark.readStream.format("tms").option("tms.url", url).option("subscribe", "in")
    reader = reader.option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", str(OFFSETS)).load()
    noted = rows.mapInArrow(noting(folder / "reads", life), "key binary, value binary")
    writer = noted.writeStream.format("tms").option("tms.url", url).option("topic", "out")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for _ in range(STARTS_MAX):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            print(error, file=sys.stderr)
            with (folder / f"{life}.failed").open("a") as file:
                print(*str(error).split(), file=file)
        else:
            return
    sys.exit("the query fails over and over")


def batch(spark: "SparkSession", url: str) -> None:
    """Write numbered rows."""
    value = f"rpad(cast(id AS string), {ROW_BYTES}, ' ') AS value"
    rows = spark.range(ROWS, numPartitions=TASKS).selectExpr(value)
    writer = rows.write.format("tms").option("tms.url", url).option("topic", "batch")
    writer.mode("append").save()


def noting(reads: Path, life: str) -> Noting:
    """Note every row of a topic that is read; yields the rows to write for them."""

    def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        number = task.getLocalProperty(BATCH_ID)
        name = f"{life}.{number}.{task.partitionId()}.{task.taskAttemptId()}"
        with open(reads / name, "a") as file:
            for one in batches:
                columns = (one[name].to_pylist() for name in ("partition", "offset", "value"))
                lines = [
                    f"{number} {partition} {offset} {'-' if value is None else value.hex()}"
                    for partition, offset, value in zip(*columns, strict=True)
                ]
                print(*lines, sep="\n", file=file, flush=True)
                values = pa.array(lines, pa.string()).cast(pa.binary())
                yield pa.record_batch({"key": one["key"], "value": values})
            print(END, file=file, flush=True)

    return note


def main(job: str, master: str, url: str, folder: str, life: str) -> None:
    place = Path(folder)
    options = small(place / life) | {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.task.maxFailures": "8",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = tms.spark.session(master, "killed", **options)
    spark.sparkContext.setLogLevel("WARN")
    if job == "stream":
        stream(spark, url, place, life)
    else:
        batch(spark, url)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
