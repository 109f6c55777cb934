"""The session of Spark that a command works in: the one there is, or a quiet one of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession as _SparkSession

from tms.errors import ConfigError
from tms.spark.runtime import Runtime, SparkLine
from tms.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = {
    "spark.log.level": "OFF",  # what is wrong is told by the command
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def job_session(master: str | None, options: Mapping[str, str]) -> Iterator["SparkSession"]:
    """A session that is stopped at the end if it was made here. Raises `ConfigError`."""
    if Runtime().checked() is SparkLine.SPARK35:
        raise ConfigError(
            "Jobs need the data source of pyspark 4.2 or newer, and this is pyspark 3.5: "
            "pip install 'tms[spark]'."
        )
    if _SparkSession.getActiveSession() is not None:
        yield session(master, "tms", **options)
        return
    spark = session(master, "tms", **(_QUIET | dict(options)))
    try:
        yield spark
    finally:
        spark.stop()
