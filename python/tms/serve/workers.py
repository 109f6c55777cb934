"""Several processes behind one address, on one data directory: `tms serve --workers N`.

    supervise ──▶ python -m tms.serve.workers, N times ──▶ run_service, as an instance of a cluster

The directory is opened by the supervisor; the workers get everything else that they share as
descriptors that they inherit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial

import msgspec

from tms.access.records import AccessRecords
from tms.cluster.identity import InstanceIdentity
from tms.cluster.membership import InstanceRecord
from tms.cluster.ownership import Ownership, SharedBy
from tms.cluster.workers.cluster import WorkerCluster
from tms.cluster.workers.members import WorkerMember
from tms.cluster.workers.records import ChangeCount, ServedRecords
from tms.cluster.workers.store import WorkerStore
from tms.cluster.workers.supervisor import MEMBER, RECORDS, Supervisor, connect
from tms.engine.config import EngineConfig
from tms.errors import TMSError
from tms.model.setting import ConfiguredSetting
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.decoding import from_json
from tms.runtime.version import VERSION
from tms.serve.config import Settings
from tms.serve.listeners import Listeners, advertised_host, bind_worker, listen, reached_at
from tms.serve.opening import HttpPeers, leveldb_limits, open_store, raise_descriptor_limit
from tms.serve.running import run_service, welcome
from tms.server import logs
from tms.server.systemd import SystemdNotifier, without_systemd
from tms.store.base import Store
from tms.store.leveldb.store import LevelDBStore
from tms.topics.sweep import open_metadata, sweep

SHARED_BY = SharedBy("workers")  # in the record of who owns the store


class WorkerOrder(msgspec.Struct):
    """The settings of a worker, at its start. The numbers but the first are descriptors."""

    number: int
    socket_path: str
    changes: int
    listener: int
    fronts: dict[str, int]  # listeners of front ends, by their names
    settings: str
    told: list[ConfiguredSetting] = []


def supervise(
    settings: Settings, listeners: Listeners, told: Sequence[ConfiguredSetting] = ()
) -> None:
    """Serve by worker processes until a signal comes. Raises what keeps the directory from being
    opened."""
    clock, descriptors = SystemClock(), raise_descriptor_limit()
    store = open_store(settings, clock, descriptors // 4)
    assert isinstance(store, LevelDBStore), "the settings ask for workers of nothing else"
    own_listeners = ExitStack()
    try:
        records = open_metadata(store)
        sweep(store, records)
        welcome(settings, AccessRecords(records, clock))
        [listener] = listeners.http
        of_workers = [
            own_listeners.enter_context(closing(bind_worker(settings, listeners, nth)))
            for nth in range(settings.server.workers)
        ]

        def start(number: int, path: str, changes: int) -> "subprocess.Popen[bytes]":
            fronts = {name: one.fileno() for name, one in of_workers[number - 1].fronts.items()}
            order = WorkerOrder(
                number,
                path,
                changes,
                listener.fileno(),
                fronts,
                settings.model_dump_json(),
                [*told],
            )
            return _process(order, store.lock)

        silent_s = settings.server.session_s
        status = _SupervisorStatus(
            SystemdNotifier(os.environ), reached_at(settings, listener), clock
        )
        supervisor = Supervisor(
            records, clock, settings.server.workers, start, silent_s, status.looked
        )
        _handle_signals(supervisor, status, has_certificates=bool(settings.tls.cert))
        supervisor.run()
    finally:
        own_listeners.close()
        store.close()


def _process(order: WorkerOrder, lock: int) -> "subprocess.Popen[bytes]":
    """Start a worker; `lock` is the descriptor of the directory's lock."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tms.serve.workers"],
        stdin=subprocess.PIPE,
        pass_fds=[order.listener, lock, *order.fronts.values(), order.changes],
        env=without_systemd(os.environ),
        start_new_session=True,  # a signal from the terminal is for the supervisor
    )
    assert process.stdin is not None, "it was asked for"
    with suppress(BrokenPipeError):  # it has ended: that is seen soon
        process.stdin.write(msgspec.json.encode(order))
        process.stdin.close()
    return process


class _SupervisorStatus:
    """Reports to systemd for a supervisor, whose loop looks after the workers."""

    def __init__(self, systemd: SystemdNotifier, url: str, clock: Clock) -> None:
        self.systemd = systemd
        self._url = url
        self._clock = clock
        self._is_ready = False
        self._next_s = 0.0

    def looked(self, works: bool) -> None:
        """At every look of the supervisor."""
        now_s = self._clock.monotonic_s()
        if works and not self._is_ready:
            self._is_ready = True
            self.systemd.ready(self._url)
        if self.systemd.watchdog_s and now_s >= self._next_s:
            self._next_s = now_s + self.systemd.watchdog_s / 2
            self.systemd.alive()

    def reloaded(self) -> None:
        """The workers were signalled to read the certificates again."""
        if self._is_ready:
            self.systemd.reloading()
            self.systemd.ready(self._url)


def _handle_signals(
    supervisor: Supervisor, status: _SupervisorStatus, *, has_certificates: bool
) -> None:
    def stop() -> None:
        status.systemd.stopping()
        supervisor.ask_to_stop()

    def reload() -> None:
        if has_certificates:
            supervisor.pass_on(signal.SIGHUP)
        status.reloaded()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    if has_certificates or status.systemd.listens:
        signal.signal(signal.SIGHUP, lambda *_: reload())


def work(order: WorkerOrder) -> None:
    """Serve as a worker until a signal comes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are certificates to look at
    settings = Settings.model_validate_json(order.settings)
    server = settings.server
    logs.configure(server.log_level, server.log_format, server.access_log)
    own = listen(settings.server.host, 0)
    fronts = {name: socket.socket(fileno=number) for name, number in order.fronts.items()}
    http = [socket.socket(fileno=order.listener), own]
    listeners = Listeners(http, fronts, order.number - 1)
    open_ = partial(_open, settings, order, listeners)
    run_service(settings, listeners, open_, welcomes=False, told=order.told)


def _open(
    settings: Settings,
    order: WorkerOrder,
    listeners: Listeners,
    clock: Clock,
    config: EngineConfig,
    descriptors: int,
) -> tuple[Store, WorkerCluster]:
    assert settings.data is not None, "workers divide a data directory"
    id = f"worker-{order.number}"
    dial = partial(connect, order.socket_path)
    records = ServedRecords(partial(dial, RECORDS, id), ChangeCount(order.changes))
    limits = leveldb_limits(settings, descriptors)
    store = WorkerStore(settings.data, records, clock, limits)
    identity = InstanceIdentity(id, clock)
    host = advertised_host(settings)
    record = InstanceRecord(
        id,
        reached_at(settings, listeners.http[-1], host),  # the listener of this worker alone
        VERSION,
        keys=identity.keys,
        number=order.number,
        endpoints=listeners.endpoints(settings),
    )
    member = WorkerMember(partial(dial, MEMBER, id), record, settings.server.session_s)
    ownership = Ownership(records, clock, id, config.owner, shared_by=SHARED_BY)
    ownership.take()
    lifetime_ms = config.transaction_lifetime_ms
    peers = HttpPeers(identity, settings.tls.peers())
    return store, WorkerCluster(records, clock, member, ownership, peers, lifetime_ms)


def main() -> None:
    """A worker's process."""
    order = from_json(sys.stdin.buffer.read(), WorkerOrder)
    try:
        work(order)
    except TMSError as error:
        raise SystemExit(f"error: worker {order.number}: {error.message}") from error


if __name__ == "__main__":
    main()
