"""The supervisor's treatment of processes that do not work."""

import subprocess
import sys
import threading

import pytest

from tests.waiting import PATIENCE_S
from tms.cluster.workers.supervisor import STARTS_MAX, Supervisor
from tms.errors import Unavailable
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore


def _supervisor(started: list[int], code: str) -> Supervisor:
    def start(number: int, path: str, changes: int) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # prints when it has started, or has ended
        process.stdout.close()
        started.append(number)
        return process

    records = MemoryStore().open("metadata", create=True)
    return Supervisor(records, SystemClock(), 2, start, silent_s=1.0)


def test_workers_that_never_come_to_work_are_given_up() -> None:
    started: list[int] = []
    with pytest.raises(Unavailable, match="No worker comes to work"):
        _supervisor(started, "raise SystemExit(3)").run()
    assert STARTS_MAX <= started.count(1) + started.count(2) <= 2 * STARTS_MAX


def test_workers_that_do_not_end_are_killed_at_the_third_time_of_asking() -> None:
    started: list[int] = []
    code = """if True:
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("started", flush=True)
        time.sleep(60)
    """
    supervisor = _supervisor(started, code)
    running = threading.Thread(target=supervisor.run)
    running.start()
    while len(started) < 2:
        threading.Event().wait(0.01)
    for _ in range(2):
        supervisor.ask_to_stop()
        running.join(0.5)
        assert running.is_alive()
    supervisor.ask_to_stop()
    running.join(PATIENCE_S)
    assert not running.is_alive()
