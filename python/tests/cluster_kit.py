"""Instances of a cluster in this process: one store, one list of members, and services that call
one another over HTTP."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import tms
from tests.http_kit import Client, Served, serving
from tests.log_kit import KeptStore
from tests.waiting import PATIENCE_S, until
from tms.client.client import Bus
from tms.cluster.cluster import Cluster
from tms.cluster.identity import InstanceIdentity
from tms.cluster.membership import InstanceRecord, MembershipState, MembershipView
from tms.cluster.numbers import number_of
from tms.cluster.ownership import OwnerLimits, Ownership, SharedBy
from tms.compat.kafka.settings import KafkaSection
from tms.errors import StorageUnavailable
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.tls import ClientTls, ServerTls
from tms.serve.config import Settings
from tms.serve.listeners import Listeners
from tms.serve.opening import HttpPeers
from tms.serve.running import open_fronts
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.base import Store
from tms.topics.sweep import open_metadata

LIMITS = OwnerLimits(beat_s=0.5, silent_s=30.0)
SESSION_S = 60.0  # so that a busy machine makes no instance resign
LIFETIME_MS = 25 * 3_600_000


class Members:
    """The members, as each of them sees them immediately unless `hold` keeps it from some."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.present: dict[str, MemoryMember] = {}
        self.number = 0

    def tell(self) -> None:
        with self.lock:
            self.number += 1
            records = tuple(self.present[id].record for id in sorted(self.present))
            for member in self.present.values():
                member.see(MembershipView(self.number, records))


class MemoryMember:
    """A `ClusterMember` without a ZooKeeper."""

    def __init__(self, members: Members, record: InstanceRecord) -> None:
        self._members = members
        self._changed: Callable[[], None] = lambda: None
        self.record, self.session_s = record, SESSION_S
        self.view = MembershipView()
        self.state = MembershipState.LOST
        self.blind, self.shows_keys = False, True  # it sees nothing new; the others see its keys

    def join(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        with self._members.lock:
            self._members.present[self.record.id] = self
        self._members.tell()

    def see(self, view: MembershipView, state: MembershipState = MembershipState.MEMBER) -> None:
        if not self.blind:
            self.view, self.state = view, state
            self._changed()

    def suspend(self) -> None:
        """Let it lose sight of the others: it cannot tell whether they see it."""
        self.state = MembershipState.SUSPENDED
        self._changed()

    def expire(self, blind: bool = False) -> None:
        """Hide it from the others; with `blind` it does not know."""
        self.blind = blind
        with self._members.lock:
            self._members.present.pop(self.record.id, None)
        if not blind:
            self.state = MembershipState.LOST
            self._changed()
        self._members.tell()

    def show(self, record: InstanceRecord) -> None:
        self.record = record if self.shows_keys else replace(record, keys=())
        self._members.tell()

    def leave(self) -> None:
        with self._members.lock:
            self._members.present.pop(self.record.id, None)
        self._members.tell()


def instance(
    store: Store,
    members: Members,
    record: InstanceRecord,
    clock: Clock | None = None,
    tls: ClientTls | None = None,
    limits: OwnerLimits = LIMITS,
    session_s: float = SESSION_S,
    away_s: float | None = None,
) -> tuple[Cluster, MemoryMember]:
    """An instance for an engine."""
    clock, metadata = clock or SystemClock(), open_metadata(store)
    ownership = Ownership(metadata, clock, record.id, limits, shared_by=SharedBy("test"))
    ownership.away_s = away_s or ownership.away_s
    ownership.take()
    ownership.start()
    identity = InstanceIdentity(record.id, clock)
    number = number_of(metadata, record.id)
    member = MemoryMember(members, replace(record, keys=identity.keys, number=number))
    member.session_s = session_s
    peers = HttpPeers(identity, tls or ClientTls())
    return Cluster(metadata, clock, member, ownership, peers, LIFETIME_MS), member


class Cut:
    """A `before` of a `FaultyStore`: while it is cut, no operation is answered. Waiting operations
    run when the cut ends."""

    def __init__(self) -> None:
        self._heals = threading.Event()
        self._heals.set()

    def __call__(self, operation: str, name: str) -> None:
        if not self._heals.wait(PATIENCE_S):
            raise StorageUnavailable("The store does not answer.")

    def begin(self) -> None:
        self._heals.clear()

    def end(self) -> None:
        self._heals.set()


class Instances:
    """Services that are instances of one cluster over a store in memory; with `tls`, and `peers` as
    their identity to one another, over TLS; with `kafka` for Kafka's clients, too."""

    def __init__(
        self,
        store: Store | None = None,
        tls: ServerTls | None = None,
        peers: ClientTls | None = None,
        access: AccessLimits | None = None,
        kafka: KafkaSection | None = None,
        engine_clock: Clock | None = None,
    ) -> None:
        self.tls, self.peers = tls, peers
        self.kafka = kafka
        self.engine_clock = engine_clock
        self._access = access
        self.store = store or KeptStore(shared=True)
        self.limits, self.session_s = LIMITS, SESSION_S
        self.clock: Clock | None = None  # by which instances measure what they reach
        self.away_s: float | None = None
        self.members = Members()
        self.stacks: dict[str, contextlib.ExitStack] = {}
        self.served: dict[str, Served] = {}
        self.member: dict[str, MemoryMember] = {}
        self.cluster: dict[str, Cluster] = {}

    def start(self, id: str, store: Store | None = None, port: int = 0) -> Served:
        """Start another instance, which others can reach when this returns."""
        listener = socket.create_server(("127.0.0.1", port), backlog=2_048)
        host, port = listener.getsockname()[:2]
        settings = Settings(data=Path("unused"), kafka=self.kafka or KafkaSection())
        listeners = Listeners([listener])
        if self.kafka is not None:
            listeners.fronts["kafka"] = socket.create_server(("127.0.0.1", 0), backlog=2_048)
        record = InstanceRecord(
            id, f"{self.scheme}://{host}:{port}", "0", endpoints=listeners.endpoints(settings)
        )
        store = store or self.store
        cluster, member = instance(
            store,
            self.members,
            record,
            self.clock,
            tls=self.peers,
            limits=self.limits,
            session_s=self.session_s,
            away_s=self.away_s,
        )
        self.stacks[id] = stack = contextlib.ExitStack()
        served = stack.enter_context(
            serving(
                store,
                clock=self.engine_clock,
                owner=cluster,
                listener=listener,
                tls=self.tls,
                network=NetworkOptions(self._access, self.peers or ClientTls()),
                open_fronts=lambda service: open_fronts(settings, service, listeners, 50, None),
            )
        )
        served.service.engine.start()
        self.served[id], self.member[id], self.cluster[id] = served, member, cluster
        return served

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def url(self, id: str) -> str:
        host, port = self.served[id].address
        return f"{self.scheme}://{host}:{port}"

    def connect(self, id: str, **options: Any) -> Bus:
        """A bus at one of the instances, once one coordinates."""
        self.coordinator()
        return tms.connect(self.url(id), **options)

    def stop(self, id: str) -> None:
        """End an instance."""
        self.stacks.pop(id).close()
        del self.served[id]

    def owners(self, topic: str, id: str = "") -> list[str]:
        """The designated owners of a topic's partitions, according to an instance."""
        served = self.served[id or next(iter(self.served))]
        with Client(served.address) as client:
            answer = client.request("GET", f"/v2/namespaces/default/topics/{topic}/owners")
        owners: list[str] = answer.json["owners"]
        return owners

    def coordinator(self) -> str:
        """The coordinator, once there is one."""
        found: list[str] = []

        def coordinates() -> bool:
            served = self.served.items()
            found.extend(id for id, one in served if one.service.engine.coordinates)
            return bool(found)

        until(coordinates, "an instance coordinates")
        return found[0]


@contextlib.contextmanager
def instances(
    *ids: str,
    tls: ServerTls | None = None,
    peers: ClientTls | None = None,
    access: AccessLimits | None = None,
    kafka: KafkaSection | None = None,
    engine_clock: Clock | None = None,
) -> Iterator[Instances]:
    """Instances of these ids."""
    all = Instances(None, tls, peers, access, kafka, engine_clock)
    try:
        for id in ids:
            all.start(id)
        yield all
    finally:
        for id in [*all.served]:
            all.stop(id)
