"""Spark sessions with everything set that TMS needs, for the pyspark that is installed.

    what is asked for   >   what this lane needs   >   what both need

Invariants

* Settings of the caller are never changed, and neither is the session's time zone.
* A pyspark or Java that is missing or does not fit fails here, not minutes later inside of Spark.
* A local Spark listens at the loopback address only.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tms.errors import ConfigError
from tms.spark.runtime import Runtime, SparkLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
_PYTHONS = {
    "PYSPARK_PYTHON": "spark.pyspark.python",
    "PYSPARK_DRIVER_PYTHON": "spark.pyspark.driver.python",
}
_BATCH_ROWS = 64  # a row may be a block, and Spark 3.5 counts rows, not bytes
_PARQUET_ROWS = 512  # read at a time; a row may be a message of 8 MiB, and Spark counts rows

_QUIET = {
    "spark.log.level": "OFF",  # what is wrong is told by the command
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

CONNECTOR = (
    "org.apache.hbase.connectors.spark:hbase-spark:1.0.1",
    "org.apache.hbase.connectors.spark:hbase-spark-protocol-shaded:1.0.1",
    "org.apache.hbase:hbase-shaded-mapreduce:2.6.4-hadoop3",
    "org.slf4j:slf4j-nop:1.7.36",  # the connector wants a binding of slf4j 1, Spark has 2
)
# What Spark brings itself, and what no class of the above is reached from.
CONNECTOR_EXCLUDES = (
    "org.apache.spark:*",
    "org.scala-lang:*",
    "org.scala-lang.modules:*",
    "org.apache.hadoop:*",
    "org.apache.avro:*",
    "org.codehaus.jackson:*",
    "com.fasterxml.jackson.core:*",
    "org.slf4j:slf4j-api",
    "org.apache.hbase:hbase-shaded-client",
    "commons-logging:commons-logging",
    "org.javassist:javassist",
    "jakarta.annotation:*",
    "jakarta.validation:*",
    "org.glassfish.hk2.external:*",
    "org.json4s:*",
    "javax.servlet:*",
    "com.google.protobuf:*",
)


def session(
    master: str | None = None,
    app: str = "tms",
    *,
    zookeeper: str | None = None,
    **options: str,
) -> "SparkSession":
    """A session of Spark that reads and writes topics: the active one, or a new one.

    `master` is Spark's; by default `local[*]`, or what `spark-submit` was told. `zookeeper` is the
    quorum of the HBase to read from with pyspark 3.5: `host:port,…`. `options` are Spark's, e.g.
    `**{"spark.driver.memory": "4g"}`. With pyspark 3.5 the connector is fetched from Maven Central
    when it is first needed, unless `spark.jars` or `spark.jars.packages` brings it.

    Raises `ConfigError` when pyspark or Java is missing or does not fit.
    """
    lane = Runtime().checked()
    if zookeeper is not None and lane is not SparkLine.SPARK35:
        raise ConfigError(
            "A quorum is for the HBase connector of pyspark 3.5, and this is a newer pyspark: leave"
            " zookeeper out, and read with the options source=hbase and tms.store."
        )
    from pyspark.sql import SparkSession

    if master is None and not _is_submitted():
        master = "local[*]"
    _set_environment(master, options)
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in (settings(lane, master, zookeeper, options) | options).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if lane is SparkLine.SPARK4:
        register(spark)
    return spark


@contextmanager
def job_session(master: str | None, options: Mapping[str, str]) -> Iterator["SparkSession"]:
    """The session that a command works in: the one there is, or a quiet one of its own, which is
    stopped at the end. Raises `ConfigError`."""
    if Runtime().checked() is SparkLine.SPARK35:
        raise ConfigError(
            "Jobs need the data source of pyspark 4.2 or newer, and this is pyspark 3.5: "
            "pip install 'tms-log[spark]'."
        )
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        yield session(master, "tms", **options)
        return
    spark = session(master, "tms", **(_QUIET | dict(options)))
    try:
        yield spark
    finally:
        spark.stop()


def register(spark: "SparkSession") -> None:
    """Make the format `tms` known in a session of your own. Raises `ConfigError` with pyspark
    3.5."""
    if Runtime().lane() is SparkLine.SPARK35:
        raise ConfigError(
            "pyspark 3.5 has no data sources in Python: pip install 'tms-log[spark]', or see"
            " docs/spark.md for what works with 3.5."
        )
    from tms.spark.source.reader import TmsDataSource

    spark.dataSource.register(TmsDataSource)


def settings(
    lane: SparkLine, master: str | None, zookeeper: str | None, asked: dict[str, str]
) -> dict[str, str]:
    """The settings of Spark that TMS makes by itself."""
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.columnarReaderBatchSize": str(_PARQUET_ROWS),
    }
    if master is not None and master.startswith("local"):
        settings |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    if lane is SparkLine.SPARK4:
        return settings | {"spark.sql.python.filterPushdown.enabled": "true"}
    settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = str(_BATCH_ROWS)
    if "spark.jars" not in asked and "spark.jars.packages" not in asked:
        settings["spark.jars.packages"] = ",".join(CONNECTOR)
        settings["spark.jars.excludes"] = ",".join(CONNECTOR_EXCLUDES)
        settings["spark.jars.ivy"] = str(_cache() / "ivy")
    if zookeeper is not None:
        settings["spark.hadoop.hbase.zookeeper.quorum"] = zookeeper
        ports = {port for _, colon, port in map(_split, zookeeper.split(",")) if colon}
        if len(ports) == 1:
            settings["spark.hadoop.hbase.zookeeper.property.clientPort"] = ports.pop()
    return settings


def _split(server: str) -> tuple[str, str, str]:
    return server.strip().rpartition(":") if ":" in server else (server, "", "")


def _is_submitted() -> bool:
    """True if `spark-submit` runs this program: then it has chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _set_environment(master: str | None, asked: dict[str, str]) -> None:
    """Set the environment variables that Spark reads, where they are not set already."""
    for name, option in _PYTHONS.items():
        if option not in asked:  # else workers take the first python3 on PATH
            os.environ.setdefault(name, sys.executable)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tms"
