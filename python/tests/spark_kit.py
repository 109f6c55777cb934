"""One Spark for all tests of a worker: `from tests.spark_kit import spark` makes the fixture known.

Small, local, and gone with the worker. Whoever needs settings of his own passes them to queries or
`spark.newSession()`, never to this session.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tms.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session with two threads, in which a task may fail once; the format `tms` is registered."""
    session = tms.spark.session("local[2,2]", "tests", **small(tmp_path_factory.mktemp("spark")))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def small(folder: Path) -> dict[str, str]:
    """Options of a Spark that takes little, keeps its files in `folder`, and listens to nobody."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
    }
