"""Starts programs in processes that have imported `tms` already: imports are most of a start.

    test's process                     forker                       child
    ──────────────   Popen, once ──▶   imports, waits
                     request ───────▶  forks twice ───────────────▶ module.main()
                     ◀── process id

Invariants

* The forker opens nothing of TMS and starts no thread, so a child begins as a new process does.
* A child is adopted by the test's process, which gets its exit code and its processor time: the
  process between forker and child has ended when the forker answers, and the test's process is a
  reaper of orphans until then.
* A child has the environment, the directory, the standard output and error of its request, and no
  descriptor of the forker.
"""

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import NamedTuple

from tests.databases import NAMES
from tms.block import encode
from tms.store.leveldb import drivers

_IMPORTED = (
    "tests.faults.member",
    "tests.faults.transactor",
    "tests.faults.writer",
    "tms.cli.main",
    "tms.cli.serve",
    "tms.serve.main",
    "tms.engine.engine",
    "tms.store.leveldb.upgrade",
    *(drivers.LIBRARIES[name] for name in NAMES),
)
_REQUEST_BYTES_MAX = 128 << 10
_PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER = 36, 0x59616D61
_ANYBODY = (1 << 64) - 1


class Request(NamedTuple):
    """A request for a child that runs `main()` of a module. The child may stop itself before, so
    that strace attaches to it."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    directory: str
    stops: bool


class Child:
    """A process that runs `main()` of a module, with those methods of `subprocess.Popen` that
    tests need."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        descriptors: tuple[int, int],
        stops: bool = False,
    ) -> None:
        self.returncode: int | None = None
        request = Request(module, [*arguments], {**env}, os.getcwd(), stops)
        self.pid = _forker().fork(request, descriptors)
        if stops:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"{module} has ended before it began"

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            watched = os.pidfd_open(self.pid)
            try:
                ended = select.poll()  # unlike `select`, for any number of descriptors
                ended.register(watched, select.POLLIN)
                if not ended.poll(1_000 * timeout_s):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            finally:
                os.close(watched)
        code = self._reap(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class _Forker:
    """The process that forks, and the connection to it."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.forker", str(other.fileno())],
                pass_fds=[other.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def fork(self, request: Request, descriptors: tuple[int, int]) -> int:
        """The process id of a new child of this process."""
        data = json.dumps(request._asdict()).encode()
        with self._one_at_a_time:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [data], descriptors)
                answer = self._socket.recv(100)
            finally:
                _adopt_orphans(False)
        assert answer, "the forker has ended"
        return int(answer)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _forker() -> _Forker:
    made = _Forker()
    atexit.register(made.end)
    return made


def _adopt_orphans(adopts: bool) -> None:
    """Have this process become the parent of descendants whose parent ends, or no longer."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, int(adopts)):
        raise OSError("no process may adopt orphans here; run the tests on Linux 3.4 or later")


def _prctl(option: int, value: int) -> int:
    code: int = ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    return code


def serve(connection: socket.socket) -> Request | None:
    """Fork a child for each request until the other end is closed, then None; in a child its
    request."""
    for module in _IMPORTED:
        import_module(module)
    encode([b""])  # pyarrow loads the rest of itself with the first block
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "a thread does not survive a fork"
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 2)
        if not data:
            return None
        pids = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(pids[1], b"%d" % child)
                os._exit(0)
            for descriptor, stream in zip(descriptors, (sys.stdout, sys.stderr), strict=True):
                os.dup2(descriptor, stream.fileno())
            connection.close()
            for descriptor in (*descriptors, *pids):
                os.close(descriptor)
            return Request(**json.loads(data))
        os.waitpid(between, 0)
        connection.send(os.read(pids[0], 100))
        for descriptor in (*descriptors, *pids):
            os.close(descriptor)


def run(request: Request) -> None:
    """Become the program."""
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.directory)
    sys.argv = [request.module, *request.arguments]
    if request.stops:
        _prctl(_PR_SET_PTRACER, _ANYBODY)
        os.kill(os.getpid(), signal.SIGSTOP)
    import_module(request.module).main()


if __name__ == "__main__":
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        run(asked)
