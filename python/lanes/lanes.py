"""The lanes of both runs. A lane is one command; lanes share nothing that one of them changes.

    make test        LANDING, four lanes at once: a lane with a JVM waits a good part of its time,
                     and the lane with most tests has a worker a core, so that all are busy; with
                     a single core two lanes at a time
    make test-long   long_lanes(), two at a time: everything that a landing leaves out

A test runs in `make test-long` if it is marked `long`, and in `make test` otherwise.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.path.abspath(sys.executable)
PYTHON_SPARK35 = str(ROOT / ".venv-spark35" / "bin" / "python")
MAVEN = ("mvn", "-B", "-ntp", "-q")
CORES = len(os.sched_getaffinity(0))
WORKERS = min(CORES + 1, 4)  # of the lane with most tests, some of which wait
SOAK_S = 900  # of a lane
OPENAPI = "python/tests/api/test_server_openapi.py"  # collecting it takes many seconds
FRESH_SEEDS = "1000,5000"  # of one engine, and of several instances
MUTANTS = 50  # per room
NOTICED = "0.8"  # of them, at least
KAFKA = ("integration/kafka_clients", "integration/kafka_recipes")  # and what is built on them
WITH_WORKERS = ("python",)  # lanes in which files compete for workers
LANDING_AT_ONCE = 4 if CORES > 1 else 2
LONG_AT_ONCE = 2


class Lane(NamedTuple):
    """A command, and the variables that its environment has besides those of the run."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def _pytest(name: str, *arguments: str, python: str = PYTHON) -> tuple[str, ...]:
    plugin = ("-p", "lanes.plugin", "--lane", name)
    return (python, "-m", "pytest", "-q", *plugin, *arguments)


def _python(name: str, mark: str) -> Lane:
    """A lane with all tests below python/tests that have no lane of their own, spread over
    workers."""
    others = ("python/tests/spark", OPENAPI)
    spread = ("-n", str(WORKERS), *(f"--ignore={other}" for other in others))
    return Lane(name, _pytest(name, "-m", mark, "-p", "no:schemathesis", *spread, "python/tests"))


def _hbase(name: str, mark: str) -> Lane:
    others = (f"--ignore={folder}" for folder in KAFKA)
    return Lane(name, _pytest(name, "-m", mark, *others, "integration"))


def _spark35(name: str, mark: str) -> Lane:
    """A lane with both Sparks: 3.5, which has a connector to HBase, and 4 in a process beside
    it."""
    command = _pytest(name, "-m", mark, "python/tests_spark35", python=PYTHON_SPARK35)
    return Lane(name, command, (("TMS_TEST_SPARK4_PYTHON", PYTHON),))


LANDING: tuple[Lane, ...] = (
    _hbase("hbase", "not long"),
    Lane("spark", _pytest("spark", "-m", "not long", "python/tests/spark")),
    _python("python", "not long"),
    Lane("openapi", _pytest("openapi", OPENAPI)),
    _spark35("spark35", "not long"),
    Lane("java", (*MAVEN, "verify")),
)


def long_lanes() -> Iterator[Lane]:
    """The lanes of `make test-long`, longest first."""
    from mutants.rooms import ROOMS

    soak = (PYTHON, "-m", "integration.soak", "--seconds", str(SOAK_S))
    yield Lane("soak", soak)
    yield Lane("soak-instances", (*soak, "--instances", "3"))
    fresh = _pytest("seeds", "-n", "1", "python/tests/simulation", "-k", "fresh")
    yield Lane("seeds", fresh, (("TMS_TEST_SEEDS", FRESH_SEEDS),))
    yield _hbase("hbase-long", "long")
    yield Lane("kafka", _pytest("kafka", *KAFKA))
    workers = (("TMS_TEST_KAFKA_WORKERS", "3"),)
    yield Lane("kafka-workers", _pytest("kafka-workers", *KAFKA), workers)
    yield Lane("spark-long", _pytest("spark-long", "-m", "long", "python/tests/spark"))
    yield _spark35("spark35-long", "long")
    yield _python("python-long", "long")
    yield Lane("java-2.5", (*MAVEN, "-Phbase-2.5", "verify"))
    yield Lane("pythons", ("make", "test-pythons"))
    for room in ROOMS:
        command = (PYTHON, "-m", "mutants", room, "--count", str(MUTANTS), "--least", NOTICED)
        yield Lane(f"mutants-{room}", command)
