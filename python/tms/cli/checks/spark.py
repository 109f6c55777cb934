"""Checks of the requirements of Spark: pyspark, a Java that fits, Arrow and pandas, a Python for
its workers, and the connection to the topics.

No check starts Spark or imports pyspark.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from tms.cli.checks import service
from tms.cli.checks.finding import Finding, ok, problem, warning
from tms.cli.checks.machine import Machine
from tms.errors import ConfigError, TMSError
from tms.spark.runtime import Runtime, SparkLine
from tms.store.hbase import HBaseStore, Limits

LIMITS = Limits(connect_s=5.0, call_s=10.0, connections_max=1)
PYTHON_ANSWERS_S = 60.0
_NEEDED = ("pyarrow", "pandas")
_PROBE = "import sys, pyarrow, pandas, tms; print('%d.%d' % sys.version_info[:2])"
_EXTRAS = {SparkLine.SPARK4: "tms-log[spark]", SparkLine.SPARK35: "tms-log[spark35]"}


class SparkTarget(NamedTuple):
    """The sources of topics that the user named: a service, an HBase, or both."""

    url: str | None
    store: str | None


def check(runtime: Runtime, target: SparkTarget, machine: Machine) -> Iterator[Finding]:
    """All checks."""
    lane: SparkLine | None = None
    try:
        lane = runtime.lane()
        yield ok("pyspark", runtime.pyspark())
    except ConfigError as error:
        yield _finding("pyspark", error)
    yield _java(runtime, lane)
    if lane is not None:
        yield _spark_home(runtime)
        for name in _NEEDED:
            yield _library(name, _EXTRAS[lane], runtime)
        yield _workers(runtime)
    if target.url is not None:
        yield from service.check(target.url, True, machine)
    if target.store is not None:
        yield _store(target.store)


def _finding(check: str, error: ConfigError) -> Finding:
    return problem(check, error.details["found"], error.details["fix"])


def _java(runtime: Runtime, lane: SparkLine | None) -> Finding:
    try:
        version = runtime.java_version()
        if lane is not None:
            runtime.checked()
        return ok("Java", f"{version}, {runtime.java()}")
    except ConfigError as error:
        return _finding("Java", error)


def _spark_home(runtime: Runtime) -> Finding:
    other = runtime.other_spark()
    if other is None:
        return ok("SPARK_HOME", runtime.environ.get("SPARK_HOME", "not set: pyspark's own Spark"))
    home = runtime.environ["SPARK_HOME"]
    return problem(
        "SPARK_HOME",
        f"{home} is Spark {other}, but pyspark is {runtime.pyspark()}",
        f"unset SPARK_HOME, or pip install pyspark=={other}",
    )


def _library(name: str, extra: str, runtime: Runtime) -> Finding:
    """A library that pyspark needs to exchange record batches; pip has chosen its version."""
    try:
        return ok(name, runtime.installed(name))
    except metadata.PackageNotFoundError:
        found = f"{name} is not installed; pyspark needs it"
        return problem(name, found, f"pip install --upgrade '{extra}'")


def _workers(runtime: Runtime) -> Finding:
    """Checks the Python that Spark's workers run functions and data sources in."""
    named = runtime.environ.get("PYSPARK_PYTHON")
    if named is None:
        return _default_workers(runtime)
    python = shutil.which(named, path=runtime.environ.get("PATH", ""))
    own = "{}.{}".format(*sys.version_info[:2])
    version = None if python is None else _ask(python)
    if version == own:
        return ok("PYSPARK_PYTHON", named)
    if python is None:
        found = f"{named} is not a program on this machine"
    elif version is None:
        found = f"{named} cannot import tms, pyarrow and pandas"
    else:
        found = f"{named} is Python {version}, this is {own}"
    fix = f"export PYSPARK_PYTHON={sys.executable}, or install the same there"
    return problem("PYSPARK_PYTHON", found, fix)


def _default_workers(runtime: Runtime) -> Finding:
    python = shutil.which("python3", path=runtime.environ.get("PATH", ""))
    if python is not None and os.path.dirname(python) == os.path.dirname(sys.executable):
        return ok("PYSPARK_PYTHON", f"not set: {python}")
    return warning(
        "PYSPARK_PYTHON",
        "not set; tms.spark.session() sets it, but workers of a session of your own would run"
        f" {python or 'python3'} instead of {sys.executable}",
        f"export PYSPARK_PYTHON={sys.executable}",
    )


def _ask(python: str) -> str | None:
    """The version of a Python; None if it cannot import the modules that a worker needs."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PYTHON_ANSWERS_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _store(url: str) -> Finding:
    try:
        with contextlib.closing(HBaseStore(url, limits=LIMITS)) as store:
            return ok("HBase", f"{store.place} has the tables of TMS")
    except TMSError as error:
        return problem("HBase", error.message, f"tms hbase status --store {url}")
