"""One Spark 3.5 for all of these tests, which run in an environment of their own: `make
env-spark35`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import tms.spark
from tests.spark_kit import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session with two threads, without the connector to HBase."""
    options = small(tmp_path_factory.mktemp("spark")) | {"spark.jars": ""}
    session = tms.spark.session("local[2]", "tests", **options)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
