"""One Spark 3.5 and one HBase for all of these tests, which run in an environment of their own:
`make env-spark35`."""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from integration.cluster import Standalone
from integration.cluster.runtime import resolve_connector
from integration.install import install
from tests.spark_kit import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """An HBase of these tests' own."""
    with Standalone(tmp_path_factory.mktemp("hbase")) as started:
        yield started


@pytest.fixture
def store(hbase: Standalone) -> str:
    """The URL of an empty store with 8 regions."""
    url = hbase.url(f"t{uuid.uuid4().hex[:12]}")
    install(url, regions=8)
    return url


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, hbase: Standalone) -> Iterator["SparkSession"]:
    """A session with two threads, with the connector to HBase."""
    jars = ",".join(map(str, resolve_connector().glob("*.jar")))
    folder, options = tmp_path_factory.mktemp("spark"), {"spark.jars": jars}
    session = started("local[2]", folder, hbase.zookeeper, **options)
    yield session
    session.stop()
