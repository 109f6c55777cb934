"""Topics of TMS in Spark, beside topics of Kafka with Spark's own source for them.

    batch    all rows of a topic
    stream   the same rows in micro-batches of 64 MiB

Both topics get the same rows from the same Spark, each through its own sink, before the timing
begins. Kafka acknowledges when the page cache has the messages, and TMS is set to do so, too.
Spark's source for Kafka runs inside its JVM; the source for TMS is Python.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import Goal, Report, Sample, Samples, interleaved, measured, median, ratio
from bench.spark.bare import Bare, of_size
from bench.spark.common import MIB, THREADS, drain, pid, session
from bench.spark.streaming import BATCH_BYTES, FIRST, SIZES, streamed
from bench.spark.topics import PARTITIONS
from bench.targets import Service, Setup
from integration.kafka import Broker, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TMS, KAFKA = "TMS", "Kafka"
GOAL = Goal(at_most=1.3)


def run(setup: Setup, report: Report) -> None:
    """Compare a topic of TMS and a topic of Kafka with equal rows."""
    report.title("Topics in Spark: TMS beside Kafka")
    jars = ",".join(map(str, spark_jars()))
    with (
        setup.directory() as directory,
        Service.start(directory) as service,
        Broker(directory / "kafka", PARTITIONS) as broker,
        session(directory, **{"spark.jars": jars}) as spark,
    ):
        spark.dataSource.register(Bare)
        for size in SIZES:
            _Both(setup, spark, directory, service, broker, size).compare(report)


class _Both:
    """Two topics with the same rows."""

    def __init__(
        self,
        setup: Setup,
        spark: "SparkSession",
        directory: Path,
        service: Service,
        broker: Broker,
        size: int,
    ) -> None:
        self._setup = setup
        self._spark = spark
        self._directory = directory
        self._pids = {TMS: service.pid, KAFKA: broker.pid}
        self._size = size
        self._topic = f"rows{size}"
        self._runs = count()
        times = FIRST + (3 if setup.quick else 6)
        self._rows = BATCH_BYTES // size * times
        self._options: dict[str, dict[str, Any]] = {
            TMS: {"tms.url": service.url},
            KAFKA: {"kafka.bootstrap.servers": broker.bootstrap},
        }
        service.bus.create_topic(self._topic, partitions=PARTITIONS, durability="written")
        self._fill()

    def compare(self, report: Report) -> None:
        """Compare both ways of reading, in turns."""
        ways: dict[str, Callable[[str], Sample]] = {"batch": self._batch, "stream": self._stream}
        for way, read in ways.items():
            variants = {name: partial(read, name) for name in self._pids}
            if way == "batch":
                for one in variants.values():  # Java compiles hot code
                    one()
            self._tell(report, way, interleaved(variants, self._setup.runs))

    def _tell(self, report: Report, way: str, samples: Samples) -> None:
        label = f"{way}, {self._size} B messages"
        for name, its in samples.items():
            rate = median(its, lambda s: s.per_s * self._size / MIB)
            report.line("spark_kafka", f"{label}, {name}", rate, "MiB/s", None, {name: its})
            cpu = median(its, lambda s: s.cpu_s_per_million)
            report.line("spark_kafka", f"{label}, {name}, CPU", cpu, "s/million")
        times = ratio(samples, TMS, KAFKA, lambda s: 1 / s.per_s)
        report.line("spark_kafka", f"{label}, time of TMS ÷ Kafka", times, "×", GOAL, samples)

    def _fill(self) -> None:
        file, messages = of_size(self._directory, self._size)
        batches = -(-self._rows // messages // THREADS)
        self._rows = batches * messages * THREADS
        bare = self._spark.read.format("bare").options(file=file, batches=batches).load()
        rows = bare.selectExpr("value", f"CAST(offset % {PARTITIONS} AS INT) AS partition")
        for name, options in self._options.items():
            writer = rows.write.format(name.lower()).options(**options, topic=self._topic)
            writer.mode("append").save()

    def _batch(self, name: str) -> Sample:
        reader = self._spark.read.format(name.lower()).options(**self._options[name])
        rows = reader.option("subscribe", self._topic).load()

        def work() -> int:
            drain(rows)
            return self._rows

        return measured(work, pid(self._spark), self._pids[name])

    def _stream(self, name: str) -> Sample:
        reader = self._spark.readStream.format(name.lower()).options(**self._options[name])
        reader = reader.option("maxOffsetsPerTrigger", BATCH_BYTES // self._size)
        reader = reader.option("startingOffsets", "earliest").option("subscribe", self._topic)
        checkpoint = self._directory / f"checkpoint-{self._size}-{name}-{next(self._runs)}"
        return streamed(self._spark, reader.load(), checkpoint, self._pids[name])
