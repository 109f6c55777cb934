"""Opening the store that the settings name, as its owner or as an instance of a cluster.

* A store that other machines keep may not be there yet: it is tried again until it is, or until a
  signal ends the process.
* The drivers of HBase and ZooKeeper are loaded only if the settings need them.
"""

import os
import resource
import socket
import threading
from collections.abc import Sequence
from functools import partial

from tms.client.http.peer import HttpPeer, peer_at
from tms.cluster.cluster import Cluster
from tms.cluster.identity import InstanceIdentity, ProvenRequest
from tms.cluster.membership import InstanceRecord
from tms.cluster.numbers import number_of
from tms.cluster.ownership import Ownership, SharedBy, own
from tms.engine.config import EngineConfig
from tms.errors import ConfigError, StorageUnavailable, Unavailable
from tms.model.message import Buffer
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.runtime.extras import needed
from tms.runtime.tls import ClientTls
from tms.runtime.version import VERSION
from tms.serve.config import HBaseSection, Settings
from tms.serve.listeners import Listeners, reached_at
from tms.server.guard import INSTANCE
from tms.server.systemd import SystemdNotifier
from tms.store.base import Store
from tms.store.leveldb.databases import LevelDBLimits, maps_within
from tms.store.leveldb.store import LevelDBStore
from tms.topics.sweep import open_metadata

_log = EventLog("tms.server")
_MAPS_OPEN_MAX = 256
_STORE_RETRY_S = 2.0


def open_in_time(
    settings: Settings, listeners: Listeners, clock: Clock, config: EngineConfig, descriptors: int
) -> tuple[Store, Ownership | Cluster | None]:
    """The store, owned by this process. Raises `ConfigError`, `AlreadyRunning`, …; of a store that
    other machines keep no error that may pass."""
    name = f"the service {reached_at(settings, listeners.http[0])} on {socket.gethostname()}"
    while True:
        try:
            store = open_store(settings, clock, descriptors)
            try:
                if settings.cluster:
                    return store, _instance(settings, store, clock, listeners, config)
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
    settings: Settings, store: Store, clock: Clock, listeners: Listeners, config: EngineConfig
) -> Cluster:
    """This process as an instance of a cluster."""
    with needed("--cluster", "cluster"):  # loads kazoo
        from tms.cluster.zookeeper import Ensemble, ZooKeeperMember, cluster_id
    ensemble, server = Ensemble.parse(settings.cluster), settings.server
    address = server.advertise or reached_at(settings, listeners.http[0])
    id = server.instance or address.partition("://")[2]
    identity = InstanceIdentity(id, clock)
    connect = partial(ensemble.session, server.session_s, settings.tls.peers())
    cluster = cluster_id(connect, ensemble.folder)
    metadata = open_metadata(store)
    shared_by = SharedBy(ensemble.folder, cluster)
    ownership = Ownership(metadata, clock, id, config.owner, shared_by=shared_by)
    ownership.take(server.take_over)
    number = number_of(metadata, id)
    ownership.start()
    record = InstanceRecord(
        id,
        address,
        VERSION,
        server.capacity,
        keys=identity.keys,
        number=number,
        endpoints=listeners.endpoints(settings),
    )
    member = ZooKeeperMember(connect, ensemble.folder, record, server.session_s, cluster)
    lifetime_ms = config.transaction_lifetime_ms
    peers = HttpPeers(identity, settings.tls.peers())
    return Cluster(metadata, clock, member, ownership, peers, lifetime_ms)


class HttpPeers:
    """Makes peers of the records of other instances; see `PeerConnector`."""

    def __init__(self, identity: InstanceIdentity, tls: ClientTls) -> None:
        self.identity = identity
        self._tls = tls

    def __call__(self, record: InstanceRecord) -> HttpPeer:
        return peer_at(record.id, record.address, partial(self._prove, record.id), self._tls)

    def _prove(self, to: str, method: bytes, target: bytes, body: Sequence[Buffer]) -> bytes:
        request = ProvenRequest(method, target, INSTANCE)
        return self.identity.prove(to, request, sum(map(len, body)), body)


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
        from tms.store.hbase.pool import Limits
        from tms.store.hbase.store import HBaseStore
    limits = Limits(section.connect_timeout_s, section.call_timeout_s, section.connections)
    return HBaseStore(url, clock=clock, limits=limits, tls=tls)


def raise_descriptor_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
