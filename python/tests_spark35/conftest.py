"""One Spark 3.5 for all of these tests, which run in an environment of their own: `make
env-spark35`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import tms.spark
from integration.cluster.runtime import resolve_connector
from tests.spark_kit import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session with two threads, with the connector to HBase."""
    jars = ",".join(map(str, resolve_connector().glob("*.jar")))
    options = small(tmp_path_factory.mktemp("spark")) | {"spark.jars": jars}
    session = tms.spark.session("local[2]", "tests", **options)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
