"""One Spark for all tests of a process: `from tests.spark_kit import spark` imports the fixture.

It is small, local, and ends with the process. A test that needs other settings passes them to
queries or to `spark.newSession()`, never to this session.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pyspark
import pytest

import tms.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Expressions are interpreted: compiling them takes longer than applying them to a few rows.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Classes are not verified, and compiled once: most of them are used for seconds.
_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session with two threads, in which a task may fail once; the format `tms` is registered."""
    session = started("local[2,2]", tmp_path_factory.mktemp("spark"), **_INTERPRETED)
    yield session
    session.stop()


def started(
    master: str, folder: Path, zookeeper: str | None = None, **options: str
) -> "SparkSession":
    """A small session that keeps its files in `folder`."""
    with mock.patch.dict(os.environ, SPARK_HOME=str(home(folder))):
        session = tms.spark.session(
            master, "tests", zookeeper=zookeeper, **(small(folder) | options)
        )
    session.sparkContext.setLogLevel("ERROR")
    return session


def home(folder: Path) -> Path:
    """Spark's home as installed, where executors may write, but without the archive of pyspark:
    from that archive each Python worker would read its modules and compile them, for seconds."""
    made = folder / "home"
    if not made.exists():
        made.mkdir()
        for one in Path(pyspark.__file__).parent.iterdir():
            if one.name != "python":
                (made / one.name).symlink_to(one)
    return made


def small(folder: Path) -> dict[str, str]:
    """Options of a Spark that needs little, keeps its files in `folder`, and serves no page."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(_JAVA),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
    }
