"""Flights through Spark: a stream counts them by carrier and hour, from one topic to another,
exactly once; then an archive and a report with a plot.

    flights ─▶ count by carrier and hour ─▶ flights-by-hour        a stream, in several batches
       └─▶ archive in Parquet ─▶ report.csv, report.png

Arguments are a directory for archive and report, and, optionally, a number of flights:

    .venv/bin/python examples/flights_pipeline.py /tmp/flights 50000

It starts a service of its own on a free port, and Spark in this process; it needs Java 17 or newer.
The count of an hour is complete when the flights are three days further; it is then published once.
"""

import csv
import json
import sys
import tempfile
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from flights import Flight, read_flights, require, service
from matplotlib.figure import Figure

import tms
import tms.spark
from tms.spark import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, BY_HOUR = "flights", "flights-by-hour"
PARTITIONS = 4
BATCHES = 4
FLIGHT = "carrier STRING, time_hour STRING, dep_delay INT"
LATE = "3 days"  # how far a partition may be behind another
Counts = dict[tuple[str, str], tuple[int, int]]  # carrier and hour → flights, minutes of delay


def main(directory: Path, limit: int | None = None) -> None:
    """Run all steps and prove each of them."""
    flights = list(islice(read_flights(), limit))
    print(f"read {len(flights):,} flights")
    with (
        tempfile.TemporaryDirectory(prefix="tms-pipeline-") as scratch,
        service(Path(scratch) / "data") as url,
        tms.connect(url) as bus,
    ):
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        bus.create_topic(BY_HOUR, partitions=PARTITIONS)
        with bus.producer(TOPIC) as producer:
            for carrier, flight in flights:
                producer.send(flight, key=carrier)
        spark = small_session(Path(scratch))
        try:
            count_by_hour(spark, url, len(flights), f"{scratch}/checkpoint")
            prove(flights, published(bus))
            keep(spark, url, directory, len(flights))
        finally:
            spark.stop()


def small_session(scratch: Path) -> "SparkSession":
    """A Spark session with two threads and its files in `scratch`."""
    return tms.spark.session(
        "local[2]",
        "flights-pipeline",
        **{
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )


def count_by_hour(spark: "SparkSession", url: str, flights: int, checkpoint: str) -> None:
    """The stream. Each batch is one transaction in the topic that it writes, so readers see all of
    it or nothing; started again with its checkpoint it goes on where it was, and nothing is
    counted twice."""
    found = (
        spark.readStream.format("tms")
        .option("tms.url", url)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", -(-flights // BATCHES))
        .load()
    )
    counted = (
        found.selectExpr(f"from_json(CAST(value AS STRING), '{FLIGHT}') AS flight")
        .selectExpr("flight.*", "CAST(flight.time_hour AS TIMESTAMP) AS hour")
        .withWatermark("hour", LATE)
        .groupBy("carrier", "hour", "time_hour")
        .agg({"*": "count", "dep_delay": "sum"})
    )
    counted = counted.selectExpr(
        "concat(carrier, ' ', time_hour) AS key",
        "to_json(struct(carrier, time_hour AS hour, `count(1)` AS flights, "
        "coalesce(`sum(dep_delay)`, 0) AS delay_minutes)) AS value",
    )
    query = (
        counted.writeStream.format("tms")
        .option("tms.url", url)
        .option("topic", BY_HOUR)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one.numInputRows]
    print(f"counted in {len(batches)} batches of the stream")


def published(bus: tms.Bus) -> Counts:
    """The counts that the stream has published."""
    found: Counts = {}
    for message in bus.consumer(BY_HOUR, start="earliest", stop_at_end=True):
        row = json.loads(message.value or b"{}")
        key = (row["carrier"], row["hour"])
        if key in found:
            sys.exit(f"error: NOT TRUE: {key} was published once")
        found[key] = (row["flights"], row["delay_minutes"])
    return found


def prove(flights: list[Flight], counts: Counts) -> None:
    """The counts again by a loop in Python, for all complete hours."""
    expected: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for _, raw in flights:
        flight = json.loads(raw)
        one = expected[flight["carrier"], flight["time_hour"]]
        one[0] += 1
        one[1] += flight["dep_delay"] or 0
    until = max(hour for _, hour in counts)
    same = counts == {key: (a, b) for key, (a, b) in expected.items() if key[1] <= until}
    require(same, f"{len(counts):,} counts, each published once, are those of a loop in Python")


def keep(spark: "SparkSession", url: str, directory: Path, flights: int) -> None:
    """Archive the flights, and report on both topics."""
    archive = str(directory / "archive")
    jobs.archive(spark, [TOPIC], archive, url)
    kept = jobs.archived(spark, archive).count()
    require(kept == flights, f"{kept:,} flights are in the archive {archive}")
    hours = jobs.report(spark, [TOPIC, BY_HOUR], url)
    with open(directory / "report.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(jobs.Hour._fields)
        table.writerows(hours)
    plot(hours, directory / "report.png")
    counted = sum(hour.messages for hour in hours if hour.topic == TOPIC)
    require(counted == flights, f"the report {directory / 'report.csv'} counts them all")


def plot(hours: "list[jobs.Hour]", path: Path) -> None:
    """The messages of each topic by hour, as a picture."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    for topic in sorted({hour.topic for hour in hours}):
        some = [hour for hour in hours if hour.topic == topic]
        axes.plot([hour.hour for hour in some], [hour.messages for hour in some], ".-", label=topic)
    axes.set_title("Messages in each hour (UTC)")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("error: name a directory for archive and report; see the head of this file")
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
