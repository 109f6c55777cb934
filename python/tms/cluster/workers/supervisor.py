"""The supervisor: holds the lock of the directory, serves its records, starts and restarts workers.

    main thread    starts processes, notices that they ended
    accepting      a thread for each connection of a worker: its records, or its signs of life

Invariants

* A worker that is silent is killed, and leaves the view when its process has ended.
* The workers inherit the lock of the directory: no other process opens it while one of them lives.
* When the supervisor ends, however that happens, the workers end. It ends by itself when none of
  them ever came to work.
"""

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tms.cluster.workers.frames import Frames
from tms.cluster.workers.members import WorkerMembers
from tms.cluster.workers.records import ChangeCount, RecordServer
from tms.errors import TMSError, Unavailable
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.store.base import Map

AGAIN_S_MIN, AGAIN_S_MAX = 0.2, 10.0  # before a worker that ended is started anew
LOOK_S = 0.05
KILLED_AT = 3  # times of asking
STARTS_MAX = 3  # of a worker before any has worked
RECORDS, MEMBER = "records", "member"
_log = EventLog(__name__)


class _Worker:
    """A worker, over all of its processes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = f"worker-{number}"
        self.process: subprocess.Popen[bytes] | None = None
        self.again_at_s = 0.0
        self.pause_s = AGAIN_S_MIN
        self.started_s = 0.0
        self.starts = 0


class Supervisor:
    """Keeps so many workers running. `start` starts one, of its number, the path of the socket and
    the descriptor of the change count, which it has to inherit."""

    def __init__(
        self,
        records: Map,
        clock: Clock,
        count: int,
        start: Callable[[int, str, int], "subprocess.Popen[bytes]"],
        silent_s: float,
        looked: Callable[[bool], None] = lambda works: None,
    ) -> None:
        """`looked` is called at every look, with whether any worker has come to work."""
        self._clock = clock
        self._looked = looked
        self._start = start
        self._silent_s = silent_s
        self._changes = ChangeCount()
        self._records = RecordServer(records, self._changes)
        self._members = WorkerMembers()
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._by_id = {worker.id: worker for worker in self._workers}
        self._asked = 0  # to stop
        self._worked = False  # whether any worker ever did
        self._directory = tempfile.TemporaryDirectory(prefix="tms-workers-")
        self._path = str(Path(self._directory.name) / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(256)

    def ask_to_stop(self) -> None:
        """Let the workers end; asked again, at once; asked for the third time they are killed."""
        self._asked += 1

    def pass_on(self, number: int) -> None:
        """A signal to the workers that work; one that begins will find what it is about."""
        for worker in self._workers:
            process = worker.process
            if process is not None and worker.id in self._members.ids:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    def run(self) -> None:
        """Until asked to stop, and all workers have ended. Raises `Unavailable` when they end
        before any of them works."""
        threading.Thread(target=self._accept, name="tms-supervisor", daemon=True).start()
        told = 0
        try:
            while not self._asked or any(worker.process for worker in self._workers):
                while told < self._asked:
                    told += 1
                    self._signal(signal.SIGTERM if told < KILLED_AT else signal.SIGKILL)
                for worker in self._workers:
                    self._look_after(worker)
                self._looked(self._worked)
                threading.Event().wait(LOOK_S)
        finally:
            self._signal(signal.SIGKILL)
            self._listener.close()
            self._directory.cleanup()

    def _look_after(self, worker: _Worker) -> None:
        now_s = self._clock.monotonic_s()
        if worker.process is None:
            if not self._asked and now_s >= worker.again_at_s:
                worker.process = self._start(worker.number, self._path, self._changes.descriptor)
                worker.started_s = now_s
                worker.starts += 1
            return
        self._worked = self._worked or bool(self._members.ids)
        code = worker.process.poll()
        if code is None:
            return
        if not self._worked and worker.starts >= STARTS_MAX:
            raise Unavailable(
                f"No worker comes to work: {worker.id} has ended {worker.starts} times, the last "
                f"time with {code}. See the log for why."
            )
        worker.process = None
        self._members.gone(worker.id)
        if self._asked:
            return
        lived_s = now_s - worker.started_s
        worker.pause_s = (
            AGAIN_S_MIN if lived_s > AGAIN_S_MAX else min(2 * worker.pause_s, AGAIN_S_MAX)
        )
        worker.again_at_s = now_s + worker.pause_s
        _log.error("worker_ended", worker=worker.id, code=code, again_s=worker.pause_s)

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.process is not None:
                with suppress(ProcessLookupError):
                    worker.process.send_signal(number)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = Frames(connection)
        try:
            kind, id, pid = frames.receive(tuple[str, str, int])
            if kind == RECORDS:
                self._records.serve(frames)
            else:
                self._members.serve(frames, self._silent_s)
                self._kill(id, pid)
        except TMSError:
            frames.close()

    def _kill(self, id: str, pid: int) -> None:
        """It is silent, or has closed its connection, which it does by ending."""
        process = self._by_id[id].process if id in self._by_id else None
        if process is not None and process.pid == pid and not self._asked:
            process.kill()


def connect(path: str, kind: str, id: str) -> socket.socket:
    """A connection of a worker to its supervisor. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    Frames(connection).send((kind, id, os.getpid()))
    return connection
