"""`python -m bench`: runs the benchmarks, prints them as a table and writes JSON lines."""

import argparse
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    backup,
    compaction,
    console,
    delayed,
    design,
    followers,
    group_commit,
    groups,
    growth,
    hbase,
    idle,
    instances,
    latency,
    listing,
    long_lists,
    memory,
    queues,
    queues_http,
    starting,
    throughput,
    tls,
    tracing,
    transactions,
    transactions_many,
    workers,
)
from bench.report import Report
from bench.targets import Setup


def _later(module: str) -> Callable[[Setup, Report], None]:
    """A benchmark that loads pyspark or aiokafka when it runs, so that the others do without."""
    return lambda setup, report: importlib.import_module(module).run(setup, report)


BENCHMARKS = {
    "throughput": throughput.run,
    "tls": tls.run,
    "tracing": tracing.run,
    "latency": latency.run,
    "followers": followers.run,
    "group_commit": group_commit.run,
    "transactions": transactions.run,
    "many": transactions_many.run,
    "compaction": compaction.run,
    "groups": groups.run,
    "delayed": delayed.run,
    "delayed_million": delayed.million,
    "memory": memory.run,
    "queues": queues.run,
    "queues_http": queues_http.run,
    "growth": growth.run,
    "backup": backup.run,
    "backup_4gib": backup.four_gib,
    "idle": idle.run,
    "listing": listing.run,
    "lists": long_lists.run,
    "start": starting.run,
    "console": console.run,
    "design": design.run,
    "hbase": hbase.run,
    "instances": instances.run,
    "workers": workers.run,
    "kafka": _later("bench.kafka"),
    "kafka_records": _later("bench.kafka_records"),
    "spark": _later("bench.spark.decode"),
    "spark_stream": _later("bench.spark.streaming"),
    "spark_archive": _later("bench.spark.archive"),
    "spark_kafka": _later("bench.spark.kafka"),
    "spark_hbase": _later("bench.spark.hbase"),
    "spark_hour": _later("bench.spark.hour"),
    "spark_connector": _later("bench.spark.connector"),
}
# Run only by name: they need Java, minutes, or the extra `kafka`.
ALONE = {name for name in BENCHMARKS if name.startswith("spark")}
ALONE |= {"hbase", "instances", "kafka", "kafka_records", "delayed_million", "backup_4gib"}
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the selected benchmarks."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller amounts, within two minutes")
    usual = [name for name in BENCHMARKS if name not in ALONE]
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=usual)
    parser.add_argument("--runs", type=int, help="interleaved runs of each [5, quick: 2]")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.jsonl")
    parser.add_argument("--folder", type=Path, help="where data is written [a temporary one]")
    asked = parser.parse_args()
    report = Report(asked.quick, asked.json)
    with tempfile.TemporaryDirectory(prefix="tms-bench-", dir=asked.folder) as folder:
        setup = Setup(Path(folder), asked.quick, asked.runs or (2 if asked.quick else 5))
        for name in asked.only:
            BENCHMARKS[name](setup, report)
    report.close()


if __name__ == "__main__":
    main()
