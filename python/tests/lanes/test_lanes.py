"""The lanes of a run: all of them end, each is reported, a test file that takes too long is named,
and tests go to workers as files."""

import os
import sys
import time
from pathlib import Path

import pytest

from lanes.__main__ import report
from lanes.durations import FILE_S, SUFFIX, Durations, Taken, by_file, long_files
from lanes.lanes import LANDING, ROOT, Lane, long_lanes
from lanes.plugin import SPREAD
from lanes.running import Ended, run

pytest_plugins = ["pytester"]
LOG = "python/tests/log/test_log.py"


def _python(name: str, program: str) -> Lane:
    return Lane(name, (sys.executable, "-c", program))


def test_every_lane_runs_to_its_end_though_another_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = [
        _python("bad", "print('no'); raise SystemExit(3)"),
        _python("good", f"open({str(tmp_path / 'made')!r}, 'w'); print('yes')"),
    ]
    ended = {one.lane.name: one for one in run(lanes, 1, tmp_path / "logs", os.environ)}
    assert ended["bad"].status == 3 and ended["good"].status == 0
    assert (tmp_path / "made").exists()
    assert (tmp_path / "logs" / "good.log").read_text() == "yes\n"
    shown = capsys.readouterr().out
    assert "== bad FAILED with 3 after" in shown and "== good passed after" in shown


def test_as_many_lanes_run_at_once_as_were_asked_for(tmp_path: Path) -> None:
    """Each of two lanes waits until the other has started: one after the other they never would."""
    wait = (
        "import pathlib, time\n"
        "pathlib.Path({mine!r}).touch()\n"
        "while not pathlib.Path({other!r}).exists(): time.sleep(0.01)\n"
    )
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    lanes = [
        _python("one", wait.format(mine=one, other=two)),
        _python("two", wait.format(mine=two, other=one)),
    ]
    assert [one.status for one in run(lanes, 2, tmp_path / "logs", os.environ)] == [0, 0]


def test_an_interrupted_run_ends_what_its_lanes_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "pid"
    child = (
        f"import os, time; open({str(written)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    pause = time.sleep

    def interrupt(seconds: float) -> None:
        if written.exists() and written.read_text().endswith(" "):
            raise KeyboardInterrupt
        pause(seconds)

    monkeypatch.setattr("lanes.running.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run([_python("sleeps", parent)], 1, tmp_path / "logs", os.environ)
    child_pid = int(written.read_text())
    deadline = time.monotonic() + 60
    while _runs(child_pid) and time.monotonic() < deadline:
        pause(0.01)
    assert not _runs(child_pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_report_is_bad_if_a_lane_failed(capsys: pytest.CaptureFixture[str]) -> None:
    lane = _python("x", "")
    assert report([lane], [Ended(lane, 0, 1.0, 1.0, "")], 1.0, []) == 0
    assert report([lane], [Ended(lane, 2, 1.0, 1.0, "")], 1.0, []) == 1
    assert "x                     1 s      1 s CPU  failed with 2" in capsys.readouterr().out


def test_a_file_may_take_so_much_of_a_worker_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    durations = Durations()
    durations.note(f"{LOG}::test_one", Taken(FILE_S - 1))
    durations.note("integration/test_soak.py::test_two", Taken(FILE_S - 1))
    durations.note("integration/test_soak.py::test_two", Taken(2.0))  # its tear-down
    durations.write(tmp_path / f"lane{SUFFIX}")
    (found,) = long_files(tmp_path, ["lane"], 300.0, SPREAD)
    assert found.file == "integration/test_soak.py" and found.seconds == FILE_S + 1
    assert report([], [], 300.0, [found]) == 1
    assert "integration/test_soak.py took 91 s of a worker, 90 s is the most" in (
        capsys.readouterr().out
    )
    assert long_files(tmp_path, ["lane"], 2_000.0, SPREAD) == []
    assert long_files(tmp_path, ["other"], 300.0, SPREAD) == []  # on a slow machine


def test_a_file_whose_tests_are_spread_may_take_longer(tmp_path: Path) -> None:
    durations = Durations()
    durations.note(f"{SPREAD[0]}test_simulation.py::test_x[1]", Taken(500.0))
    durations.write(tmp_path / f"lane{SUFFIX}")
    assert long_files(tmp_path, ["lane"], 300.0, SPREAD) == []
    assert by_file(tmp_path, ["lane"]) == {f"{SPREAD[0]}test_simulation.py": 500.0}


def test_the_plugin_notes_seconds_and_keeps_files_together(
    tmp_path: Path, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]")
    body = (
        "import subprocess, sys\n\ndef test_{}():\n"
        "    subprocess.run([sys.executable, '-c', 'sum(range(3_000_000))'])"
    )
    tests = "\n".join(body.format(number) for number in range(6))
    pytester.makepyfile(test_a=tests, test_b=tests)
    plugin = ("-p", "lanes.plugin", "--lane", "x", "--notes", str(tmp_path))
    done = pytester.runpytest_subprocess("-n", "2", "-v", *plugin)
    assert done.ret == 0
    workers: dict[str, set[str]] = {}
    for line in done.outlines:
        if line.startswith("[gw") and " PASSED " in line:
            workers.setdefault(line.split()[-1].partition("::")[0], set()).add(line.split("]")[0])
    assert {name: len(by) for name, by in workers.items()} == {"test_a.py": 1, "test_b.py": 1}
    noted = (tmp_path / f"x{SUFFIX}").read_text().splitlines()
    taken = [line.split("\t") for line in noted]
    assert len(taken) == 12
    assert all(float(seconds) > 0 and float(cpu_s) > 0.02 for seconds, cpu_s, _ in taken)


@pytest.mark.parametrize("lane", [*LANDING, *long_lanes()], ids=lambda lane: lane.name)
def test_a_lane_names_folders_that_are_there(lane: Lane) -> None:
    paths = [part for part in lane.command if part.startswith(("python/", "integration"))]
    assert all((ROOT / path).exists() for path in paths if "." not in path)


def test_every_folder_of_tests_is_in_a_lane_of_a_landing() -> None:
    named = {part for lane in LANDING for part in lane.command}
    assert {"python/tests", "python/tests/spark", "python/tests_spark35", "integration"} <= named
