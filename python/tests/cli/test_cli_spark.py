"""`tms spark doctor` finds planted faults, and says how to mend them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import click
import pytest

from tests.http_kit import serving
from tms.cli.checks import spark as checks
from tms.cli.checks.finding import Finding, Status
from tms.cli.checks.machine import Machine
from tms.cli.checks.spark import SparkTarget, check
from tms.cli.contexts import Contexts
from tms.cli.main import run
from tms.cli.session import Session
from tms.cli.spark_running import Where, reading_from, service_of
from tms.spark.runtime import Runtime
from tms.store.hbase import Limits
from tms.store.memory import MemoryStore

NOWHERE = SparkTarget(None, None)
IMPATIENT = Limits(connect_s=0.2, call_s=0.2, connections_max=1)
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15'


def program(folder: Path, name: str, text: str = "") -> Path:
    """A program of this name."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def versions(**changed: str | None) -> Callable[[str], str]:
    """The installed libraries; None: this one is missing."""

    def installed(name: str) -> str:
        found = changed.get(name, {"pyspark": "4.2.1"}.get(name, "99.0"))
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    return installed


@pytest.fixture
def healthy(tmp_path: Path) -> Runtime:
    """A place without faults."""
    program(tmp_path / "bin", "java")
    python = program(tmp_path / "bin", "worker", "echo {}.{}".format(*sys.version_info[:2]))
    environ = {"PYSPARK_PYTHON": str(python), "PATH": str(tmp_path / "bin")}
    return Runtime(environ, versions(), lambda java: JAVA_17)


def wrong(runtime: Runtime, target: SparkTarget = NOWHERE) -> dict[str, Finding]:
    """The findings that are not fine."""
    found = check(runtime, target, Machine())
    return {one.check: one for one in found if one.status is not Status.OK}


def test_where_all_is_there_nothing_is_found(healthy: Runtime) -> None:
    assert wrong(healthy) == {}


def test_a_missing_pyspark_is_found_and_java_looked_at_all_the_same(healthy: Runtime) -> None:
    found = wrong(replace(healthy, installed=versions(pyspark=None), said_by=lambda java: "?"))
    assert (
        found["pyspark"].fix
        == "pip install 'tms-log[spark]' (or tms-log[spark35], for the HBase connector)"
    )
    assert [*found] == ["pyspark", "Java"]


@pytest.mark.parametrize(
    ("version", "java", "check"),
    [
        ("4.0.5", "17", "pyspark"),
        ("4.2.1", "11", "Java"),
        ("3.5.9", "25", "Java"),
        ("3.5.9", "17", None),
    ],
)
def test_a_pyspark_and_a_java_that_do_not_fit_are_found(
    healthy: Runtime, version: str, java: str, check: str | None
) -> None:
    said = f'openjdk version "{java}.0.1"'
    found = wrong(replace(healthy, installed=versions(pyspark=version), said_by=lambda _: said))
    assert [*found] == ([] if check is None else [check])
    assert all(one.status is Status.PROBLEM and one.fix for one in found.values())


def test_no_java_is_found(healthy: Runtime) -> None:
    [found] = wrong(replace(healthy, environ={**healthy.environ, "PATH": "/nowhere"})).values()
    assert found.check == "Java"
    assert "install Java 17" in (found.fix or "")


@pytest.mark.parametrize("name", ["pyarrow", "pandas"])
def test_a_library_that_is_missing_is_found(healthy: Runtime, name: str) -> None:
    found = wrong(replace(healthy, installed=versions(**{name: None})))
    assert found[name].fix == "pip install --upgrade 'tms-log[spark]'"


def test_a_spark_home_of_another_version_is_found(healthy: Runtime, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    found = wrong(replace(healthy, environ={**healthy.environ, "SPARK_HOME": str(tmp_path)}))
    assert found["SPARK_HOME"].found.endswith("is Spark 3.5.9, but pyspark is 4.2.1")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "is not a program on this machine"),
        ("exit 1", "cannot import tms, pyarrow and pandas"),
        ("echo 3.8", "is Python 3.8, this is"),
    ],
)
def test_a_python_that_workers_cannot_run_in_is_found(
    healthy: Runtime, tmp_path: Path, script: str | None, told: str
) -> None:
    named = tmp_path / "mine"
    if script is not None:
        program(tmp_path, "mine", script)
    found = wrong(replace(healthy, environ={**healthy.environ, "PYSPARK_PYTHON": str(named)}))
    assert told in found["PYSPARK_PYTHON"].found
    assert sys.executable in (found["PYSPARK_PYTHON"].fix or "")


def test_workers_without_a_python_of_their_own_get_a_warning(
    healthy: Runtime, tmp_path: Path
) -> None:
    environ = {"PATH": healthy.environ["PATH"]}
    program(tmp_path / "bin", "python3")
    found = wrong(replace(healthy, environ=environ))
    assert found["PYSPARK_PYTHON"].status is Status.WARNING
    assert str(tmp_path / "bin" / "python3") in found["PYSPARK_PYTHON"].found


def test_the_way_to_the_topics_is_tried(healthy: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LIMITS", IMPATIENT)
    found = wrong(healthy, SparkTarget("http://127.0.0.1:1", "hbase://127.0.0.1:1/tms"))
    assert found["service"].status is found["HBase"].status is Status.PROBLEM
    assert "cannot be reached" in found["HBase"].found
    assert found["HBase"].fix == "tms hbase status --store hbase://127.0.0.1:1/tms"
    assert "HBase" in wrong(healthy, SparkTarget(None, "not a place"))


def test_a_service_that_runs_is_fine(healthy: Runtime) -> None:
    with serving(MemoryStore()) as served:
        url = served.url
        found = list(check(healthy, SparkTarget(url, None), Machine()))
    assert "TMS answers at" in next(one.found for one in found if one.check == "service")
    assert not [one for one in found if one.status is Status.PROBLEM]


def test_the_command_ends_with_1_when_something_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TMS_URL", "TMS_STORE", "TMS__STORE", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "missing"))
    assert run(["spark", "doctor"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("problem  PYSPARK_PYTHON")
    assert f"fix: export PYSPARK_PYTHON={sys.executable}" in shown
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert run(["spark", "doctor", "--json"]) == 0
    looked_at = [one["check"] for one in json.loads(capsys.readouterr().out)]
    assert looked_at == ["pyspark", "Java", "SPARK_HOME", "pyarrow", "pandas", "PYSPARK_PYTHON"]
    monkeypatch.setattr(checks, "LIMITS", IMPATIENT)
    monkeypatch.setenv("TMS_STORE", "hbase://127.0.0.1:1/tms")
    assert run(["spark", "doctor", "--url", "http://127.0.0.1:1", "--all"]) == 1
    shown = capsys.readouterr().out
    assert "problem  service" in shown
    assert "problem  HBase" in shown
    assert "ok       pyspark" in shown


def test_a_directory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", "doctor", "--data", "here"]) == 2
    assert "not from a directory" in capsys.readouterr().err


def test_a_job_without_pyspark_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "from importlib import metadata\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name == 'pyspark':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.version, sys.modules['pyspark'] = version, None\n"
        "from tms.cli.main import run\n"
        "sys.exit(run(['spark', 'report', 'flights']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 78
    assert "pip install 'tms-log[spark]'" in done.stderr


def test_what_was_typed_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMS_URL", "TMS_DATA", "TMS_STORE", "TMS__STORE"):
        monkeypatch.delenv(name, raising=False)
    assert reading_from(Session(), None) == Where("http://127.0.0.1:7070", None)
    monkeypatch.setenv("TMS__STORE", "hbase://a:1/tms")
    assert reading_from(Session(), None) == Where(None, "hbase://a:1/tms")
    assert reading_from(Session(url="http://b:2"), None) == Where("http://b:2", None)
    monkeypatch.setenv("TMS_URL", "http://c:3")
    assert reading_from(Session(), None) == Where("http://c:3", None)
    assert reading_from(Session(), "hbase://d:4/tms") == Where(None, "hbase://d:4/tms")
    with pytest.raises(click.UsageError, match="choose --store"):
        reading_from(Session(url="http://b:2"), "hbase://d:4/tms")


def test_a_context_is_a_service_with_its_token_but_not_with_files_of_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("TMS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts = Contexts(os.environ)
    contexts.save("plain", {"url": "http://a:1"}, "token", lambda *_: None)
    contexts.save("safe", {"url": "https://a:1", "ca": "/ca.pem"}, None, lambda *_: None)
    plain = Where("http://a:1", None, "token")
    assert reading_from(Session(context="plain"), None) == plain
    with pytest.raises(click.UsageError, match="TMS_CA"):
        reading_from(Session(context="safe"), None)
    with pytest.raises(click.UsageError, match="choose --store"):
        reading_from(Session(context="plain"), "hbase://d:4/tms")
    contexts.select("plain")
    assert reading_from(Session(), None) == plain
    monkeypatch.setenv("TMS_DATA", "d")  # commands of Spark ignore it
    assert reading_from(Session(), None) == plain
    monkeypatch.setenv("TMS_TOKEN", "other")
    assert service_of(Session()) == Where("http://a:1", None, "other")
    monkeypatch.setenv("TMS_STORE", "hbase://a:1/tms")
    assert reading_from(Session(), None) == Where(None, "hbase://a:1/tms")
