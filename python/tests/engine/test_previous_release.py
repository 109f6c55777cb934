"""The directory of the previous release: this release opens it, continues in it, moves it to
RocksDB; and the previous release continues after this one, as docs/operations.md says."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import tms
from tests import previous_release as previous
from tests.cli.test_cli import Run, data, run  # noqa: F401
from tests.databases import NAMES
from tms.cli.checks.verify import Verifier
from tms.store.leveldb import LevelDBStore

# ruff: noqa: F811
ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
needs_leveldb = pytest.mark.skipif("leveldb" not in NAMES, reason="needs plyvel")
needs_both = pytest.mark.skipif(len(NAMES) < 2, reason="needs plyvel and rocksdict")


@pytest.fixture
def left(data: Path) -> Path:
    """The directory that the previous release left when it was killed."""
    data.mkdir()
    with tarfile.open(VECTORS / "directory-2.tar.xz") as archive:
        archive.extractall(data, filter="data")
    return data


def expected() -> Any:
    return json.loads((VECTORS / "directory-2.json").read_bytes())


def contents(path: Path) -> Any:
    with tms.open(path, create=False) as bus:
        return json.loads(json.dumps(previous.contents(bus)))


def verified(path: Path) -> None:
    store = LevelDBStore(path, create=False)
    assert list(Verifier(store, frozenset()).run()) == []
    store.close()


@needs_leveldb
def test_this_release_reads_what_the_previous_one_has_left_and_goes_on(left: Path) -> None:
    assert contents(left) == expected()
    with tms.open(left, create=False) as bus:
        previous.go_on(bus)
        after = previous.contents(bus)
    assert after["topics"]["orders"] != expected()["topics"]["orders"]
    assert contents(left) == json.loads(json.dumps(after))
    verified(left)


@needs_both
def test_it_is_moved_to_rocksdb_with_all_that_it_has(left: Path, run: Run) -> None:
    assert run("upgrade", "--yes").code == 0
    assert contents(left) == expected()
    with tms.open(left, create=False) as bus:
        previous.go_on(bus)
    verified(left)


@needs_leveldb
def test_the_previous_release_goes_on_where_this_one_was(left: Path, tmp_path: Path) -> None:
    """Its code comes from the history of this repository."""
    release = tmp_path / "release"
    release.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", previous.RELEASE, "python/tms"], capture_output=True
    )
    assert archive.returncode == 0, f"needs the history: git fetch --unshallow. {archive.stderr!r}"
    subprocess.run(["tar", "-x", "-C", str(release)], input=archive.stdout, check=True)
    with tms.open(left, create=False) as bus:
        previous.go_on(bus)
        queue = bus.queue("jobs", group="workers")
        [message] = queue.receive(1, wait_s=10)
        queue.nack(message, delay_s=43_000, cause="of this release only")
        bus.admin.access.add_grant("ann", "publish", "topic:orders")
        after = json.loads(json.dumps(previous.contents(bus)))
    ended = subprocess.run(
        [sys.executable, previous.__file__, "contents", str(left)],
        env={**os.environ, "PYTHONPATH": str(release / "python")},
        cwd=tmp_path,
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == after
    assert contents(left) == after


# --- tms upgrade --check ------------------------------------------------------------------------


def files_in(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@needs_leveldb
def test_a_check_says_what_an_upgrade_would_do_and_changes_nothing(left: Path, run: Run) -> None:
    before = files_in(left)
    said = run("upgrade", "--check", "--json")
    assert said.code == 0
    assert said.json["store"] == "leveldb"
    assert said.json["format"] == 2
    assert said.json["maps"] == said.json["anew"] == 14
    assert 10_000 < said.json["anew_bytes"] < 500_000
    told = run("upgrade", "--check").err
    assert "reads and writes it as it is" in told
    assert "14 maps are rebuilt" in told
    assert files_in(left) == before
    with tms.open(left):  # also while it is in use
        assert run("upgrade", "--check").code == 0


@needs_both
def test_a_check_of_what_was_upgraded_says_that_there_is_nothing_to_do(
    left: Path, run: Run
) -> None:
    run("upgrade", "--yes")
    ended = run("upgrade", "--check", "--json")
    assert (ended.json["store"], ended.json["anew"]) == ("rocksdb", 0)
    assert "nothing to upgrade" in run("upgrade", "--check").err


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b'{"format": 3, "store": "leveldb"}', 78, "format 3, and this release reads 2"),
        (b'{"format": 2, "store": "other"}', 78, "belongs to the store 'other'"),
        (b"torn", 1, "cannot be read"),
        (None, 3, "no data directory"),
    ],
)
def test_a_check_of_what_this_release_does_not_read_says_so(
    content: bytes | None, code: int, words: str, data: Path, run: Run
) -> None:
    if content is not None:
        (data / "maps").mkdir(parents=True)
        (data / "FORMAT").write_bytes(content)
    for arguments in (("upgrade", "--check"), ("topic", "list")):
        ended = run(*arguments)
        assert ended.code == code
        assert words in ended.err
    if content is not None:
        assert (data / "FORMAT").read_bytes() == content
