"""Sessions of Spark: their settings, and the errors if pyspark or Java does not fit."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tms.spark
from tms.errors import ConfigError
from tms.spark import sessions
from tms.spark.runtime import Runtime, SparkLine
from tms.spark.sessions import CONNECTOR, settings


@pytest.fixture
def java(tmp_path: Path) -> str:
    """A directory with a program called java."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(0o755)
    return str(tmp_path)


def runtime(
    version: str | None = "4.2.1",
    says: str = 'openjdk version "17.0.15" 2025-04-15',
    environ: Mapping[str, str] | None = None,
) -> Runtime:
    """A place with this pyspark and a Java with this output."""

    def installed(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    return Runtime(environ or {}, installed, lambda program: says)


@pytest.mark.parametrize(
    ("version", "says", "lane"),
    [
        ("4.2.1", 'openjdk version "17.0.15" 2025-04-15', SparkLine.SPARK4),
        ("4.10.0", 'openjdk version "25.0.3" 2026-04-21 LTS', SparkLine.SPARK4),
        ("5.0.0.dev1", 'java version "21" 2023-09-19', SparkLine.SPARK4),
        (
            "3.5.9",
            'Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "1.8.0_392"',
            SparkLine.SPARK35,
        ),
        ("3.5.0", 'openjdk version "11.0.2" 2019-01-15', SparkLine.SPARK35),
        ("3.5.9", 'openjdk version "17-ea" 2021-09-14', SparkLine.SPARK35),
    ],
)
def test_a_pyspark_and_its_java_fit(version: str, says: str, lane: SparkLine, java: str) -> None:
    assert runtime(version, says, {"JAVA_HOME": java}).checked() is lane


@pytest.mark.parametrize(
    ("version", "says", "told"),
    [
        (None, "", "pyspark is not installed in this Python: pip install"),
        ("4.0.5", "", "pyspark 4.0.5 is installed, TMS works with 4.2 and newer, and with 3.5"),
        ("3.4.4", "", "pyspark 3.4.4 is installed"),
        ("unknown", "", "pyspark unknown is installed"),
        (
            "4.2.1",
            'openjdk version "11.0.2"',
            "pyspark 4.2.1 needs Java 17 or newer, but .*Java 11",
        ),
        ("4.2.1", 'java version "1.8.0_1"', "needs Java 17 or newer, but .*Java 8: set JAVA_HOME"),
        ("3.5.9", 'openjdk version "25.0.3"', "needs Java 8, 11 or 17, but .*Java 25"),
        ("3.5.9", 'openjdk version "21.0.1"', "needs Java 8, 11 or 17, but .*Java 21"),
        ("4.2.1", "this is a shell script", "does not tell its version, it says 'this is"),
    ],
)
def test_what_does_not_fit_is_said_before_spark_starts(
    version: str | None, says: str, told: str, java: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        runtime(version, says, {"JAVA_HOME": java}).checked()
    assert caught.value.message.endswith(caught.value.details["fix"] + ".")


def test_java_is_looked_for_where_spark_looks(java: str) -> None:
    beside = f"{java}/bin"
    assert runtime(environ={"PATH": beside}).java() == f"{beside}/java"
    assert runtime(environ={"PATH": "/nowhere", "JAVA_HOME": java}).java() == f"{beside}/java"
    with pytest.raises(ConfigError, match="there is none on PATH: install Java 17"):
        runtime(environ={"PATH": "/nowhere"}).java()
    with pytest.raises(ConfigError, match="JAVA_HOME is /nowhere, but has no bin/java"):
        runtime(environ={"PATH": beside, "JAVA_HOME": "/nowhere"}).java()


@pytest.mark.parametrize(
    "error",
    [
        OSError("Exec format error"),
        subprocess.CalledProcessError(1, "java"),
        subprocess.TimeoutExpired("java", 30),
    ],
)
def test_a_java_that_does_not_run_is_named(error: Exception, java: str) -> None:
    def fails(program: str) -> str:
        raise error

    broken = Runtime({"JAVA_HOME": java}, lambda name: "4.2.1", fails)
    with pytest.raises(ConfigError, match=f"{java}/bin/java does not run"):
        broken.checked()


def test_the_java_of_this_machine_tells_its_version() -> None:
    assert Runtime().java_version() >= 17


def test_a_spark_home_of_another_version_is_found(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    place = runtime(environ={"SPARK_HOME": str(tmp_path)})
    assert runtime().other_spark() is None
    assert place.other_spark() is None
    (tmp_path / "jars" / "spark-core_2.13-4.2.1.jar").touch()
    assert place.other_spark() is None
    (tmp_path / "jars" / "spark-core_2.13-4.2.1.jar").rename(
        tmp_path / "jars" / "spark-core_2.12-3.5.9.jar"
    )
    assert place.other_spark() == "3.5.9"


def test_a_local_spark_listens_at_the_loopback_address_only() -> None:
    for lane in SparkLine:
        local = settings(lane, "local[2]", None, {})
        assert local["spark.driver.bindAddress"] == local["spark.driver.host"] == "127.0.0.1"
        assert "spark.driver.host" not in settings(lane, "spark://there:7077", None, {})
        assert "spark.driver.host" not in settings(lane, None, None, {})


def test_the_time_zone_of_a_session_is_left_alone() -> None:
    assert not [
        name for lane in SparkLine for name in settings(lane, None, None, {}) if "Zone" in name
    ]


def test_spark_35_gets_the_connector_unless_it_is_brought() -> None:
    made = settings(SparkLine.SPARK35, "local", None, {})
    assert "org.apache.hbase.connectors.spark:hbase-spark:1.0.1" in made["spark.jars.packages"]
    assert "org.slf4j:slf4j-api" in made["spark.jars.excludes"].split(",")
    assert made["spark.jars.ivy"].endswith("/tms/ivy")
    for name in ("spark.jars", "spark.jars.packages"):
        assert "spark.jars.excludes" not in settings(
            SparkLine.SPARK35, "local", None, {name: "mine"}
        )
    assert not [name for name in settings(SparkLine.SPARK4, "local", None, {}) if "jars" in name]


def test_the_tests_fetch_the_same_connector() -> None:
    root = Path(__file__).resolve().parents[3]
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    found = ElementTree.parse(root / "integration" / "spark35" / "pom.xml")
    parts = ("groupId", "artifactId", "version")
    dependencies = found.findall("dependencies/dependency", space)
    assert {
        ":".join(one.findtext(part, "", space) for part in parts) for one in dependencies
    } == set(CONNECTOR)


@pytest.mark.parametrize(
    ("zookeeper", "port"),
    [("a:2182,b:2182", "2182"), ("a", None), ("a:1,b:2", None), ("127.0.0.1:2181", "2181")],
)
def test_the_quorum_of_hbase_is_passed_on(zookeeper: str, port: str | None) -> None:
    made = settings(SparkLine.SPARK35, "local", zookeeper, {})
    assert made["spark.hadoop.hbase.zookeeper.quorum"] == zookeeper
    assert made.get("spark.hadoop.hbase.zookeeper.property.clientPort") == port


def test_a_quorum_is_refused_where_nothing_would_use_it() -> None:
    with pytest.raises(ConfigError, match="leave zookeeper out"):
        tms.spark.session("local[1]", zookeeper="127.0.0.1:2181")


def test_the_data_source_cannot_be_registered_in_spark_35(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "Runtime", lambda: runtime("3.5.9"))
    with pytest.raises(ConfigError, match=r"3\.5 has no data sources in Python"):
        tms.spark.register(None)  # type: ignore[arg-type]


class _Builder:
    """Notes its options."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def appName(self, name: str) -> "_Builder":
        return self.config("app", name)

    def master(self, name: str) -> "_Builder":
        return self.config("master", name)

    def config(self, name: str, value: str) -> "_Builder":
        self.told[name] = value
        return self

    def getOrCreate(self) -> object:
        return object()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """The options with which a session would start, in an environment without Spark's own."""
    import pyspark.sql

    for name in (*os.environ,):
        if "SPARK" in name:
            monkeypatch.delenv(name)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "remembered, so that it is put back")
        monkeypatch.delenv(name)
    monkeypatch.setattr(sessions, "register", lambda spark: None)

    def started(*arguments: str, **options: str) -> dict[str, str]:
        builder = _Builder()
        monkeypatch.setattr(pyspark.sql.SparkSession, "builder", builder)
        tms.spark.session(*arguments, **options)
        return builder.told

    return started


def test_workers_run_this_python_unless_another_is_named(
    told: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told("local[2]", **{"spark.pyspark.driver.python": "mine"})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    told("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "/another/python"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.1"


def test_what_the_caller_asks_for_wins(told: Callable[..., dict[str, str]]) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    assert told("local[2]", "mine")[name] == "true"
    made = told("local[2]", "mine", **{name: "false", "spark.driver.host": "10.0.0.1"})
    assert (made["app"], made["master"]) == ("mine", "local[2]")
    assert (made[name], made["spark.driver.host"]) == ("false", "10.0.0.1")


def test_without_a_master_spark_is_local_unless_it_was_submitted(
    told: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told()["master"] == "local[*]"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "master" not in told()


def test_importing_the_package_loads_neither_pyspark_nor_pyarrow() -> None:
    code = (
        "import sys, tms, tms.spark\n"
        "assert tms.spark.session and tms.spark.register\n"
        "assert not {'pyspark', 'pyarrow'} & {*sys.modules}, sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        tms.spark.sesion  # noqa: B018
