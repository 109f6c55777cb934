"""The composition root of `tms serve`: store, engine, application and listener, from settings.

    serve(settings)     blocks until SIGTERM or SIGINT; raises ConfigError, AlreadyRunning, …

* The port is bound before the store is opened, and the event `ready` with the url is logged when
  requests are answered.
* SIGTERM: /readyz says draining, no new work is taken, what was received is answered within
  `server.drain_s`, then the engine is closed. A second signal ends the waiting. Over a store that
  other machines keep, closing takes as long at most: one that does not answer keeps no process.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import uvloop

import tms
from tms.access.records import AccessRecords
from tms.api import messages
from tms.client.http.peer import HttpPeer
from tms.clock import Clock, SystemClock
from tms.cluster.cluster import Cluster
from tms.cluster.identity import InstanceIdentity, ProvenRequest
from tms.cluster.membership import InstanceRecord
from tms.cluster.ownership import Ownership, SharedBy, own
from tms.engine import Engine, EngineConfig
from tms.errors import ConfigError, StorageUnavailable, Unavailable
from tms.events import EventLog
from tms.extras import needed
from tms.model.message import Buffer
from tms.server import logs, memory, starting
from tms.server.app import App
from tms.server.certificates import Certificates
from tms.server.config import HBaseSection, Settings
from tms.server.guard import INSTANCE
from tms.server.http.listening import BACKLOG, HttpServer
from tms.server.service import AccessLimits, NetworkOptions, Service
from tms.server.systemd import SystemdNotifier
from tms.server.tracing import provide, traced
from tms.store.base import Store
from tms.store.leveldb.databases import LevelDBLimits, maps_within
from tms.store.leveldb.store import LevelDBStore
from tms.tls import ClientTls
from tms.topics.sweep import open_metadata

if TYPE_CHECKING:
    from tms.compat.tephra.front import TephraServer

_log = EventLog("tms.server")
_MAPS_OPEN_MAX = 256
_STORE_RETRY_S = 2.0
CLOSE_S_MIN = 1.0  # for closing, however short the drain time is
PROBES_MAX = 100  # connections that are answered before the store is open


def serve(settings: Settings) -> None:
    """Serve until a signal comes."""
    server = settings.server
    logs.configure(server.log_level, server.log_format, server.access_log)
    _check_certificates(settings)
    if settings.tls.cert or SystemdNotifier(os.environ).listens:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the files are looked at
    with contextlib.ExitStack() as listeners:
        listener = listeners.enter_context(listen(settings.server.host, settings.server.port))
        foreign = _listen_for_tephra(settings)
        if foreign is not None:
            listeners.enter_context(foreign)
        if settings.server.workers > 1:
            from tms.server.workers import supervise  # which others need not load

            supervise(settings, listener, foreign)
        else:
            open_ = partial(_open_in_time, settings, url_of(listener, settings))
            run_service(settings, [listener], foreign, open_)
    _log.info("stopped")


def run_service(
    settings: Settings,
    listeners: Sequence[socket.socket],
    foreign: socket.socket | None,
    open_: Callable[[Clock, EngineConfig, int], tuple[Store, Ownership | Cluster | None]],
    welcomes: bool = True,
) -> None:
    """Serve on these listeners what is opened by a clock, with a configuration and so many
    descriptors, until a signal comes. Unless it `welcomes` the first administrator somebody else
    does."""
    memory.configure()
    descriptors = raise_descriptor_limit()
    clock, cdap = SystemClock(), settings.cdap.limits()
    config = replace(settings.engine.config(), transaction_lifetime_ms=cdap.tx_max_lifetime_ms)
    with _answering_probes(settings, listeners, clock):
        store, owner = open_(clock, config, descriptors // 2)
        engine = _engine(store, clock, config, owner)
    try:
        if settings.server.confirm_clock:
            engine.confirm_clock()
        engine.start()
        engine.access.forget_peers()
        if welcomes:
            welcome(settings, engine.access)
        messages.arrow_schema()  # loads pyarrow, so that the first request need not
        limits = settings.limits
        connections = limits.connections(descriptors // 2)
        network = _network(settings)
        service = Service(engine, clock, limits.requests(), connections, cdap, network)
        if settings.server.is_open:
            service.warnings.append(
                f"Everybody who reaches {settings.server.host} may do everything: the service was "
                "started with --insecure."
            )
        tephra = None
        if foreign is not None:
            tephra = _tephra(settings, service, foreign, descriptors // 8)
        memory.keep()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(service, settings, listeners, tephra))
    finally:
        engine.close()


def _answering_probes(
    settings: Settings, listeners: Sequence[socket.socket], clock: Clock
) -> contextlib.AbstractContextManager[None]:
    """Whoever asks whether the service is alive or started is told so while it opens its store; of
    several workers by those that have."""
    if settings.server.workers > 1:
        return contextlib.nullcontext()
    own = settings.tls.own()
    certificates = (lambda: None) if own is None else partial(Certificates, own)
    limits = settings.limits.connections(PROBES_MAX)
    return starting.answering(listeners, limits, clock, certificates)


def _network(settings: Settings) -> NetworkOptions:
    server = settings.server
    access = AccessLimits(server.audit == "all", settings.jwt.options())
    return NetworkOptions(
        access if server.is_guarded else None,
        settings.tls.peers(),
        server.pages(),
        server.access_log,
        server.names(),
    )


def welcome(settings: Settings, records: AccessRecords) -> None:
    """Print the token that makes the first administrator, if there is none. It stands in no log:
    whoever starts the service sees it, and nobody else."""
    server = settings.server
    if not server.is_guarded or (records.has_administrator and not server.new_administrator):
        return
    print(  # noqa: T201
        "This service asks who comes, and nobody may do anything yet. Make an administrator:\n\n"
        f"    TMS_TOKEN={records.first_token()} tms token create NAME\n\n"
        "That token is valid for this one call, and until the service starts again.",
        file=sys.stderr,
        flush=True,
    )


async def _serve(
    service: Service,
    settings: Settings,
    listeners: Sequence[socket.socket],
    tephra: "TephraServer | None",
) -> None:
    own = settings.tls.own()
    certificates = None if own is None else Certificates(own)
    systemd = SystemdNotifier(os.environ)
    provide(os.environ)
    server = Server(service, settings.server.drain_s, tephra, certificates, systemd)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.ask_to_stop()
        if settings.data is None:
            drain_s = settings.server.drain_s
            end_after(drain_s + max(drain_s, CLOSE_S_MIN))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    beside = [
        asyncio.create_task(memory.trim_regularly(service)),
        asyncio.create_task(systemd.keep_alive()),
    ]
    if service.issuer is not None:
        beside.append(asyncio.create_task(service.issuer.keep_fresh()))
    if certificates is not None:
        beside.append(asyncio.create_task(certificates.watch()))
    if certificates is not None or systemd.listens:
        loop.add_signal_handler(signal.SIGHUP, server.ask_to_reload)
    try:
        await server.serve(*listeners)
    finally:
        for task in beside:
            task.cancel()


def end_after(seconds: float, end: Callable[[int], object] = os._exit) -> None:
    """End the process once this time has passed, if it has not ended by then. All that was
    acknowledged is stored, and the next owner waits no longer than for one that died."""

    def give_up() -> None:
        _log.warning("closing_incomplete", after_s=seconds, next_step="look at the store")
        end(os.EX_OK)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


class Server:
    """The service on its listener, with TLS if it has certificates, and Tephra's beside it. Made on
    the event loop that serves."""

    def __init__(
        self,
        service: Service,
        drain_s: float,
        tephra: "TephraServer | None" = None,
        certificates: Certificates | None = None,
        systemd: SystemdNotifier | None = None,
    ) -> None:
        self._service = service
        self._scheme = "http" if certificates is None else "https"
        self._drain_s = drain_s
        self._systemd = systemd or SystemdNotifier({})
        self._reload: asyncio.Task[None] | None = None
        self._url = ""
        self._tephra = tephra
        self._certificates = certificates
        self._http = HttpServer(
            traced(App(service), self._scheme), service.watchdog, drain_s, certificates
        )
        self._ending: asyncio.Task[None] | None = None

    def ask_to_stop(self) -> None:
        """SIGTERM or SIGINT; a second time: do not wait. From any thread."""
        self._http.ask_to_stop()

    def ask_to_reload(self) -> None:
        """SIGHUP: read the certificates anew, if there are any. From the event loop's thread."""
        busy = self._reload is not None and not self._reload.done()
        if self._url and not self._service.draining and not busy:
            self._reload = asyncio.get_running_loop().create_task(self._reload_certificates())

    async def _reload_certificates(self) -> None:
        self._systemd.reloading()
        if self._certificates is not None:
            await asyncio.to_thread(self._certificates.look, asked=True)
        if not self._service.draining:
            self._systemd.ready(self._url)

    async def serve(self, *listeners: socket.socket) -> None:
        """Serve until asked to stop, then answer received requests, up to the drain time."""

        async def ready() -> None:
            also = {}
            if self._tephra is not None:
                await self._tephra.start()
                also["tephra_port"] = self._tephra.port
            self._url = _url(self._scheme, listeners[0])
            _log.info("ready", url=self._url, **also)
            self._systemd.ready(self._url)

        try:
            await self._http.serve(listeners, ready, self._drain)
        finally:
            await self._end_tephra()
            self._service.close()

    def _drain(self) -> None:
        cluster = self._service.engine.cluster
        if cluster is not None:
            cluster.drain(ends=True)
        self._service.draining = True
        _log.info("draining", requests=self._http.requests)
        self._systemd.stopping()
        if self._tephra is not None:
            self._ending = asyncio.create_task(self._tephra.stop(self._drain_s))

    async def _end_tephra(self) -> None:
        if self._tephra is not None and self._ending is not None:
            await self._http.finish([self._ending], self._drain_s)
            self._tephra.hurry()
            await self._ending


def _open_in_time(
    settings: Settings, address: str, clock: Clock, config: EngineConfig, descriptors: int
) -> tuple[Store, Ownership | Cluster | None]:
    """The store, owned; one that other machines keep may not be there yet, so it is tried again
    until it is, or until a signal ends the process."""
    name = f"the service {address} on {socket.gethostname()}"
    while True:
        try:
            store = open_store(settings, clock, descriptors)
            try:
                if settings.cluster:
                    return store, _instance(settings, store, clock, address, config)
                return store, own(store, clock, name, config.owner, settings.server.take_over)
            except BaseException:
                store.close()
                raise
        except (StorageUnavailable, Unavailable) as error:
            if settings.data is not None:
                raise
            _log.warning("store_unavailable", error=error.message, next_try_s=_STORE_RETRY_S)
            SystemdNotifier(os.environ).status(f"Waiting for the store: {error.message}")
            threading.Event().wait(_STORE_RETRY_S)


def _instance(
    settings: Settings, store: Store, clock: Clock, address: str, config: EngineConfig
) -> Cluster:
    """This process as an instance of a cluster."""
    with needed("--cluster", "cluster"):  # loads kazoo
        from tms.cluster.zookeeper import Ensemble, ZooKeeperMember, cluster_id
    ensemble, server = Ensemble.parse(settings.cluster), settings.server
    address = server.advertise or address
    id = server.instance or address.partition("://")[2]
    identity = InstanceIdentity(id, clock)
    record = InstanceRecord(id, address, tms.__version__, server.capacity, keys=identity.keys)
    connect = partial(ensemble.session, server.session_s, settings.tls.peers())
    cluster = cluster_id(connect, ensemble.folder)
    member = ZooKeeperMember(connect, ensemble.folder, record, server.session_s, cluster)
    metadata = open_metadata(store)
    shared_by = SharedBy(ensemble.folder, cluster)
    ownership = Ownership(metadata, clock, id, config.owner, shared_by=shared_by)
    ownership.take(server.take_over)
    ownership.start()
    lifetime_ms = config.transaction_lifetime_ms
    peers = HttpPeers(identity, settings.tls.peers())
    return Cluster(metadata, clock, member, ownership, peers, lifetime_ms)


class HttpPeers:
    """Makes peers of the records of other instances; see `PeerConnector`."""

    def __init__(self, identity: InstanceIdentity, tls: ClientTls) -> None:
        self.identity = identity
        self._tls = tls

    def __call__(self, record: InstanceRecord) -> HttpPeer:
        return HttpPeer(record.id, record.address, partial(self._prove, record.id), self._tls)

    def _prove(self, to: str, method: bytes, target: bytes, body: Sequence[Buffer]) -> bytes:
        request = ProvenRequest(method, target, INSTANCE)
        return self.identity.prove(to, request, sum(map(len, body)), body)


def _check_certificates(settings: Settings) -> None:
    """Raise `ConfigError` for files that cannot be used, before anything is opened."""
    own = settings.tls.own()
    if own is not None:
        own.context()
    for others in (settings.tls.peers(), ClientTls(settings.jwt.ca)):
        if others.ca or others.cert:
            others.context()


def _engine(
    store: Store, clock: Clock, config: EngineConfig, owner: Ownership | Cluster | None
) -> Engine:
    try:
        return Engine(store, clock, config, owner=owner)
    except BaseException:
        if owner is not None:
            owner.release()
        raise


def url_of(listener: socket.socket, settings: Settings, host: str = "") -> str:
    """Where a bound listener is reached, by another name of its `host` if that is given."""
    return _url("https" if settings.tls.cert else "http", listener, host)


def _url(scheme: str, listener: socket.socket, host: str = "") -> str:
    bound, port = listener.getsockname()[:2]
    host = host or bound
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def open_store(settings: Settings, clock: Clock, descriptors: int) -> Store:
    """The store that the settings name."""
    if settings.data is None:
        return _open_hbase(settings.store, settings.hbase, clock, settings.tls.peers())
    try:
        return LevelDBStore(
            settings.data,
            create=True,
            clock=clock,
            limits=leveldb_limits(settings, descriptors),
        )
    except OSError as exc:
        raise ConfigError(
            f"The data directory {settings.data} cannot be used: {exc.strerror}. Choose a "
            "directory that this user can write with --data."
        ) from exc


def leveldb_limits(settings: Settings, descriptors: int) -> LevelDBLimits:
    """The bounds of a store that may have so many files open."""
    return LevelDBLimits(
        write_buffer_bytes=settings.leveldb.write_buffer_bytes,
        maps_open_max=maps_within(descriptors, _MAPS_OPEN_MAX),
    )


def _open_hbase(url: str, section: HBaseSection, clock: Clock, tls: ClientTls) -> Store:
    with needed("--store hbase://", "hbase"):  # loads the driver, which others need not
        from tms.store.hbase.store import HBaseStore
        from tms.store.hbase.thrift.pool import Limits
    limits = Limits(section.connect_timeout_s, section.call_timeout_s, section.connections)
    return HBaseStore(url, clock=clock, limits=limits, tls=tls)


def listen(host: str, port: int, option: str = "--port (server.port)") -> socket.socket:
    """The bound listener. Raises `ConfigError`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as exc:
        raise ConfigError(
            f"The service cannot listen on {host} port {port}: {exc.strerror}. Is another one "
            f"running there? Choose another port with {option}, 0 for any free one."
        ) from exc
    return listener


def _listen_for_tephra(settings: Settings) -> socket.socket | None:
    port = settings.tephra.port
    if port is None:
        return None
    return listen(settings.server.host, port, "--tephra-port (tephra.port)")


def _tephra(
    settings: Settings, service: Service, listener: socket.socket, clients_max: int
) -> "TephraServer":
    with needed("Tephra's protocol", "hbase"):  # loads the drivers, which others need not
        from tms.compat.tephra.front import TephraServer
    section = settings.tephra
    limits = section.limits(clients_max, settings.server.is_guarded)
    tephra = TephraServer(service, listener, limits)
    if section.zookeeper:
        tephra.register(section.zookeeper, section.discovery_name, settings.server.host)
    return tephra


def raise_descriptor_limit() -> int:
    """As many descriptors as the system lets us have; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
