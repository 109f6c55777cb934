"""Faults 2, 3 and 21 of transactions: killed at any write step, and power losses, on an engine in
the process itself. In each case a transaction is there as a whole or not at all."""

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.faults import transactor
from tests.faults.disk import Disk, Unsynced
from tests.faults.strace import Call, calls, record, run_program
from tests.run_seed import seed_for
from tms.errors import DataCorrupt
from tms.store.leveldb import LevelDBStore, repair

CALLS = ("write", "pwritev2", "fdatasync", "openat", "rename")
# Kills at each call, and moments at which power is lost: some in a landing, more in the long run.
KILLS = [2, pytest.param(6, marks=pytest.mark.long)]
MOMENTS = [40, pytest.param(100, marks=pytest.mark.long)]
LANES = 2


def run(place: Path, *options: str) -> int:
    place.mkdir()
    arguments = [str(place / "data"), str(place / "ledger")]
    return run_program("tests.faults.transactor", arguments, *options).returncode


def ledger(place: Path) -> bytes:
    file = place / "ledger"
    return file.read_bytes() if file.exists() else b""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """The directory of an undisturbed run, and all its calls that change files."""
    place = tmp_path_factory.mktemp("recording") / "whole"
    assert run(place, *record(place.with_suffix(".journal"))) == 0
    return place, list(calls(place.with_suffix(".journal")))


@pytest.fixture(params=KILLS)
def kills(
    recording: tuple[Path, list[Call]], request: pytest.FixtureRequest
) -> list[tuple[str, Path, int]]:
    """Calls at which to kill: a name, a file in the directory, and the number of the call on that
    file."""
    place, recorded = recording
    data = place / "data"
    ours = [one for one in recorded if one.path.startswith(f"{data}/maps/") and one.name in CALLS]
    random, seen = Random(seed_for("kills of commits")), Counter[tuple[str, str]]()
    moments: dict[str, list[tuple[str, Path, int]]] = {}
    for one in ours:
        seen[one.name, one.path] += 1
        file = Path(one.path).relative_to(data)
        moments.setdefault(one.name, []).append((one.name, file, seen[one.name, one.path]))
    most: int = request.param
    return [each for some in moments.values() for each in random.sample(some, min(most, len(some)))]


def test_faults_2_and_21_a_kill_at_any_step_of_a_commit_leaves_it_whole_or_absent(
    kills: list[tuple[str, Path, int]], fast_path: Path
) -> None:
    def kill(number: int) -> bool:
        call, file, nth = kills[number]
        place = fast_path / str(number)
        options = ["-o", os.devnull, "-e", f"trace={call}", "-P", str(place / "data" / file)]
        code = run(place, *options, "-e", f"inject={call}:signal=KILL:when={nth}")
        transactor.check(place / "data", ledger(place))
        shutil.rmtree(place)
        return code != 0

    with ThreadPoolExecutor(LANES) as lanes:
        killed = sum(lanes.map(kill, range(len(kills))))
    assert killed >= len(kills) * 4 // 5, f"only {killed} of {len(kills)} runs were killed"


@pytest.mark.parametrize("losses", MOMENTS)
@pytest.mark.parametrize("unsynced", Unsynced)
def test_fault_3_a_power_loss_takes_transactions_as_a_whole_and_none_that_was_synced(
    unsynced: Unsynced, losses: int, recording: tuple[Path, list[Call]], fast_path: Path
) -> None:
    place, recorded = recording
    data, random = place / "data", Random(seed_for("power losses of commits"))
    ends = [number * len(recorded) // losses for number in range(losses + 1)]
    moments = {random.randrange(first, end) for first, end in pairwise(ends)}
    disk, counts = Disk(data), []
    for number, lines in disk.replay(recorded, moments, beside=place / "ledger"):
        target = fast_path / str(number)
        disk.rebuild(target, unsynced, random)
        try:
            counts.append(transactor.check(target, lines, power_lost=True))
        except DataCorrupt:
            assert unsynced is Unsynced.ZEROS
            mend(target)
            counts.append(transactor.check(target, lines, power_lost=True))
        shutil.rmtree(target)
    assert max(counts) >= transactor.COUNT // 2 - 2 and len(set(counts)) > 3


def mend(path: Path) -> None:
    """Remove maps that zeros at their end made unreadable, as fsck does."""
    store = LevelDBStore(path, create=False)
    names = store.names("")
    damaged = []
    for name in names:
        try:
            store.open(name, create=False)
        except DataCorrupt:
            damaged.append(name)
    store.close()
    for name in damaged:
        repair(path, name)
