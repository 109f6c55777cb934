"""Fault 3: the power fails under a publisher, and only synced writes survive for certain.

If a file comes back with zeros in place of its end, as on some file systems, opening may be
refused; then `tms fsck --repair` must recover everything.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.faults import publisher
from tests.faults.disk import Disk, Unsynced
from tests.faults.history import check_bus, read_ledger
from tests.faults.mending import fsck
from tests.faults.strace import Recording, calls, record, recorded, strace
from tms.errors import DataCorrupt

MOMENTS = 30  # besides those right after a name changed


def _record(path: Path) -> Recording:
    """An undisturbed publisher."""
    program = [sys.executable, publisher.__file__, str(path / "data"), str(path / "ledger")]
    done = subprocess.run(
        [strace(), "-f", *record(path / "journal"), *program],
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return path, list(calls(path / "journal"))


recording = recorded(_record)


@pytest.mark.parametrize("unsynced", Unsynced)
def test_fault_3_power_loss_keeps_synced_messages_and_takes_only_an_end(
    unsynced: Unsynced,
    recording: Recording,
    fast_path: Path,
) -> None:
    path, recorded = recording
    random = Random(7)
    ours = [n for n, call in enumerate(recorded) if call.path.startswith(f"{path}/")]
    names = [n for n in ours if recorded[n].name in ("rename", "mkdir", "unlink")]
    moments = {*random.sample(ours, MOMENTS), *random.sample(names, MOMENTS // 2), ours[-1]}
    disk = Disk(path / "data")
    for number, lines in disk.replay(recorded, moments, beside=path / "ledger"):
        target = fast_path / str(number)
        disk.rebuild(target, unsynced, random)
        try:
            _check(target, lines)
        except DataCorrupt:
            assert unsynced is Unsynced.ZEROS
            code, said = fsck(target, "--repair")
            assert code == 0, said
            _check(target, lines)
        shutil.rmtree(target)


def _check(data: Path, ledger: bytes) -> None:
    with publisher.open_bus(data) as bus:
        check_bus(bus, read_ledger(ledger), power_lost=True)
