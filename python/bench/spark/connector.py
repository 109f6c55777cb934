"""The cost of TMS on the way from HBase's region servers into Spark 3.5, through the connector.

    rows    `tms.spark.read`: plan, rows of blocks from the connector, columns
    raw     the same rows of blocks from the same connector, unchanged
    ready   raw, then through Python, which answers each block with rows that it made ahead: the
            time of Spark to send as many bytes there and back

pyspark 3.5 and pyspark 4 exclude each other: HBase and its topic are made here, and the measured
code runs in `.venv-spark35`, from `bench.spark.connector35`.
"""

import json
import subprocess
from pathlib import Path

from bench.report import Goal, Report, Sample, Samples, ratio
from bench.spark.common import MIB, report_bytes
from bench.spark.filling import MESSAGE_BYTES, bulk, fill
from bench.targets import Setup
from integration.cluster import Standalone
from integration.install import install
from tms.errors import ConfigError

ROWS, RAW, READY = "rows", "raw", "ready"
BLOCK_BYTES = 256 << 10
GOAL = Goal(at_least=0.7)
TOPIC = "measured"
PARTITIONS, REGIONS = 8, 4  # a task reads a region
ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-spark35" / "bin" / "python"
_MOST_S = 600


def run(setup: Setup, report: Report) -> None:
    """A topic as rows, beside the connector's rows of blocks."""
    if not PYTHON.exists():
        raise ConfigError(f"{PYTHON} is missing: run `make env-spark35 spark35-jars`.")
    report.title("A topic in HBase read by Spark 3.5 through the connector, beside its rows alone")
    mib = 128 if setup.quick else 512
    blocks = mib * MIB // BLOCK_BYTES // PARTITIONS
    with setup.directory() as directory, Standalone(directory / "hbase") as hbase:
        url = hbase.url("bench")
        install(url, regions=REGIONS)
        fill(url, TOPIC, PARTITIONS, bulk(PARTITIONS, blocks, BLOCK_BYTES))
        told: dict[str, str | int] = {
            "directory": str(directory),
            "store": url,
            "zookeeper": hbase.zookeeper,
            "topic": TOPIC,
            "blocks": blocks * PARTITIONS,
            "messages": mib * MIB // MESSAGE_BYTES,
            "runs": setup.runs,
        }
        samples = _measured(directory / "samples.json", told)
    report_bytes(report, "spark_connector", samples, MESSAGE_BYTES)
    share = ratio(samples, ROWS, RAW)
    report.line("spark_connector", "rows ÷ raw", share, "×", GOAL, samples)
    for over, under in ((READY, RAW), (ROWS, READY)):  # Spark's share, then the share of TMS
        label = f"{over} ÷ {under}"
        report.line("spark_connector", label, ratio(samples, over, under), "×")
        share = ratio(samples, over, under, lambda s: 1 / s.cpu_s)
        report.line("spark_connector", f"{label}, by CPU of Spark", share, "×")


def _measured(file: Path, told: dict[str, str | int]) -> Samples:
    """The samples that the other Python measures."""
    program = [str(PYTHON), "-m", "bench.spark.connector35", json.dumps(told), str(file)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=_MOST_S)
    found = json.loads(file.read_text())
    return {name: [Sample(**one) for one in its] for name, its in found.items()}
