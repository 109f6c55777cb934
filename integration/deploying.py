"""Shared parts of the tests of `tms hbase`: the command on a namespace of its own, and its deaths.

code, answer = cli("install", "--jar", str(jar), …)      # exit code, and JSON
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration import coprocessor
from integration.cluster import Endpoint
from integration.install import REFRESH_MS
from tms.cli.main import run
from tms.runtime.clock import SystemClock
from tms.store.hbase.admin import Admin, HBaseTable
from tms.store.hbase.deployment.tables import REFRESH, WATCHED
from tms.store.hbase.pool import HBasePlace, Pool

Tms = Callable[..., tuple[int, Any]]
CHANGES = {
    "createNamespace",
    "createTable",
    "modifyTable",
    "putMultiple",
    "enableTable",
    "disableTable",
    "deleteTable",
    "deleteNamespace",
}


class Crash(BaseException):
    """The process dies here."""


def refresh_soon(url: str) -> None:
    """Let region servers read the metadata more often than an operator may set."""
    admin = Admin(HBasePlace.parse(url), SystemClock())
    for name in WATCHED:
        found = admin.table(name)
        attributes = {**found.attributes, REFRESH: str(REFRESH_MS)}
        admin.modify_table(replace(found, attributes=attributes))
    admin.close()


@pytest.fixture(scope="module")
def jar() -> Path:
    """The coprocessor's jar."""
    return coprocessor.build()


@pytest.fixture
def url(hbase: Endpoint) -> Iterator[str]:
    """A namespace that does not exist yet."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield hbase.url(name)
    with hbase.connect() as gateway:
        if name in gateway.namespaces():
            gateway.drop_namespace(name)


@pytest.fixture
def admin(url: str) -> Iterator[Admin]:
    made = Admin(HBasePlace.parse(url), SystemClock())
    yield made
    made.close()


@pytest.fixture
def cli(url: str, capsysbinary: pytest.CaptureFixture[bytes]) -> Tms:
    """Run `tms hbase …` on the namespace; returns its exit code and its JSON."""
    return cli_of(url, capsysbinary)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "jars")


@pytest.fixture
def installed(cli: Tms, jar: Path, directory: str) -> str:
    """The path of the installed jar, on two regions."""
    code, made = cli("install", "--jar", str(jar), "--jar-directory", directory, "--regions", "2")
    assert code == 0, made
    path: str = made["coprocessor"]["path"]
    return path


def cli_of(url: str, capsysbinary: pytest.CaptureFixture[bytes]) -> Tms:
    """Run `tms hbase …` on a store; returns its exit code and its JSON."""

    def cli(*arguments: str) -> tuple[int, Any]:
        capsysbinary.readouterr()
        code = run(["hbase", *arguments, "--store", url, "--json", "--no-input"])
        said = capsysbinary.readouterr()
        print(said.err.decode())  # pytest shows it when the test fails
        return code, json.loads(said.out)

    return cli


def descriptions(admin: Admin) -> dict[str, HBaseTable]:
    return {name: admin.table(name) for name in admin.tables()}


def paths(admin: Admin) -> set[str | None]:
    """The paths that the two tables name as the coprocessor's jar."""
    found = [admin.table(name).attributes.get("coprocessor$1") for name in ("messages", "payloads")]
    return {None if one is None else one.partition("|")[0] for one in found}


def crashing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the process die right after its n-th change."""
    attempt, done = Pool.attempt, 0

    def attempt_and_die(self: Pool, method: str, *arguments: Any, **more: Any) -> Any:
        nonlocal done
        answer = attempt(self, method, *arguments, **more)
        if method in CHANGES:
            done += 1
            if done == after:
                raise Crash(method)
        return answer

    monkeypatch.setattr(Pool, "attempt", attempt_and_die)


def interrupted(
    cli: Tms, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], None], *arguments: str
) -> Iterator[int]:
    """Run a command once for each of its changes, dying after that change; yields each time before
    the command is run again. Ends when a run completes."""
    for after in range(1, 40):
        prepare()
        with monkeypatch.context() as patched:
            crashing(patched, after)
            try:
                cli(*arguments)
                return
            except Crash:
                pass
        yield after
    raise AssertionError("it never comes through")
