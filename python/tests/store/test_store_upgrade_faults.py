"""`tms upgrade` is killed, or the power fails: the directory opens on one database or the other,
with every row, and upgrading it again finishes it."""

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.databases import NAMES
from tests.faults.disk import Disk, Unsynced
from tests.faults.strace import CHANGING, Call, Ended, calls, inject, moments, record, run_program
from tests.run_seed import seed_for
from tests.store.test_store_upgrade import Content, make, read, store_of
from tms.store.leveldb.upgrade import upgrade

pytestmark = pytest.mark.skipif(len(NAMES) < 2, reason="needs plyvel and rocksdict")

KILLS_OF_MAPS = 4  # within the maps that are copied; at all other calls each
# Moments while maps are copied, and while the old ones are removed: some in a landing, more in the
# long run; all between.
POWER_LOSSES = [3, pytest.param(30, marks=pytest.mark.long)]
KINDS = 2  # kinds of survival at each of these


class Recording(NamedTuple):
    """A directory before its upgrade, its contents, and all calls of the upgrade."""

    before: Path
    content: Content
    upgraded: Path
    calls: list[Call]

    def around_format(self) -> range:
        """The calls from the last one on a new map to the last of all."""
        last = max(n for n, call in enumerate(self.calls) if "/upgraded/" in call.path)
        return range(last, len(self.calls))

    def removals(self) -> list[int]:
        """The calls among these that remove files of old maps."""
        around = self.around_format()
        return [n for n in around if self.calls[n].path.startswith(f"{self.upgraded}/temporary/")]


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=place) as folder, pytest.MonkeyPatch.context() as patched:
        before, upgraded = Path(folder) / "before", Path(folder) / "data"
        content = make(before, patched)
        shutil.copytree(before, upgraded)
        journal = Path(folder) / "journal"
        done = upgrade_under(upgraded, *record(journal))
        assert done.returncode == 0, done.stderr.decode()
        yield Recording(
            before, content, upgraded, list(filter(Disk(upgraded).concerns, calls(journal)))
        )


def upgrade_under(data: Path, *options: str) -> Ended:
    """`tms upgrade` under strace with these options."""
    return run_program("tms.cli.main", ["upgrade", "--yes", "--data", str(data)], *options)


def check(data: Path, content: Content) -> str:
    """Check that everything is there, and upgrade again; returns the database before that."""
    found = store_of(data)
    assert read(data) == content
    list(upgrade(data))
    assert store_of(data) == "rocksdb"
    assert not (data / "upgraded").exists() and not list(data.rglob("*.ldb"))
    assert read(data) == content
    return found


def _kills(recording: Recording) -> Iterator[tuple[str, Path | None, int]]:
    """Names, paths and counts of the calls to be killed at."""
    others = []
    for name in CHANGING.split(","):
        inner = [call for call in recording.calls if call.path != str(recording.upgraded)]
        same = [call for call in inner if call.name == name]
        for (path, nth), call in zip(moments(same, recording.upgraded), same, strict=True):
            if name == "openat" and "O_CREAT" not in call.arguments:
                continue  # changes nothing
            inside = path is None or len(path.parts) > 1
            others += [(name, path, nth)] if inside else []
            yield from [] if inside else [(name, path, nth)]
    yield from others[:: len(others) // KILLS_OF_MAPS + 1]


def test_an_upgrade_killed_at_any_step_leaves_every_row_and_can_be_finished(
    recording: Recording, fast_path: Path
) -> None:
    found = []
    kills = list(_kills(recording))
    for name, path, nth in kills:
        data = fast_path / "data"
        shutil.copytree(recording.before, data)
        options = inject(name, path and data / path, "signal=KILL", nth)
        done = upgrade_under(data, *options)
        state = check(data, recording.content)
        found += [] if done.returncode == 0 else [state]
        shutil.rmtree(data)
    assert len(found) > 0.9 * len(kills), f"only {len(found)} of {len(kills)} runs were killed"
    assert {"leveldb", "rocksdb"} == set(found)


def fingerprint(data: Path) -> bytes:
    """A digest that is equal for directories with the same names and bytes."""
    found = sha256()
    for file in sorted(data.rglob("*")):
        content = file.read_bytes() if file.is_file() else b""
        found.update(b"%s %d " % (bytes(file.relative_to(data)), len(content)) + content)
    return found.digest()


@pytest.mark.parametrize("moments_lost", POWER_LOSSES)
@pytest.mark.parametrize("unsynced", Unsynced)
def test_power_that_fails_at_any_step_of_an_upgrade_loses_no_row(
    unsynced: Unsynced, moments_lost: int, recording: Recording, fast_path: Path
) -> None:
    random = Random(seed_for(f"power of upgrades {unsynced.name}"))
    last, removals = recording.around_format(), recording.removals()
    around = {*last}.difference(removals)
    around.update(random.sample(removals, min(moments_lost, len(removals))))
    losses = {*random.sample(range(last.start), moments_lost), *around}
    disk, found = Disk(recording.upgraded, recording.before), set()
    checked = set[bytes]()
    for number, call in enumerate(recording.calls):
        disk.play(call)
        for _ in range(KINDS if number in around else number in losses):
            disk.rebuild(fast_path / "data", unsynced, random)
            if (survived := fingerprint(fast_path / "data")) not in checked:
                checked.add(survived)
                found.add(check(fast_path / "data", recording.content))
            shutil.rmtree(fast_path / "data")
    assert found == {"leveldb", "rocksdb"}


def test_the_old_database_stays_intact_until_the_new_one_is_on_disk(
    recording: Recording,
) -> None:
    renamed = [n for n, call in enumerate(recording.calls) if call.name == "rename"]
    [turned] = [n for n in renamed if recording.calls[n].strings[1].endswith(b"/FORMAT")]
    maps = f"{recording.upgraded}/maps"
    before = recording.calls[:turned]
    there = [call for call in before if call.path.startswith(maps)]
    assert {call.name for call in there} == {"openat", "link"}
    assert not [call for call in there if "O_RDONLY" not in call.arguments and call.name != "link"]
    synced = {call.path for call in before if call.name in ("fsync", "fdatasync")}
    for file in filter(Path.is_file, Path(maps).rglob("*")):
        made = str(file).replace("/data/maps/", "/data/upgraded/")
        assert made in synced and str(Path(made).parent) in synced, file
