"""Membership in ZooKeeper: an ephemeral node for each instance.

    /<folder>/instances/<id>   ephemeral    an InstanceRecord as JSON
    /<folder>/cluster          persistent   the id of the cluster, as it also stands in the store

Invariants

* The id of a cluster is random: of two clusters that have one folder in two ZooKeepers only one can
  own a store (`ownership`). Instances write theirs again where ZooKeeper has lost its data.

* Only sessions, ephemeral nodes and watches are used. What they say may be wrong
  for a moment, as `membership` allows.
* A view is read as a whole whenever something has changed. Its number is the newest ZooKeeper
  transaction that made it, which only grows.
"""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import msgspec
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from tms.cluster.membership import InstanceRecord, MembershipState, MembershipView
from tms.cluster.sessions import SESSION_S, Sessions, session
from tms.errors import Invalid, Unavailable
from tms.runtime.decoding import from_json
from tms.runtime.events import EventLog
from tms.runtime.tls import ClientTls

PORT, TLS_PORT = 2_181, 2_281
CLUSTER = "cluster"
_log = EventLog(__name__)


class Ensemble(NamedTuple):
    """The place of a cluster in ZooKeeper: the servers, the folder, and the users that it lets
    in."""

    hosts: str
    folder: str
    user: str = ""
    password: str = ""
    encrypted: bool = False

    @classmethod
    def parse(cls, url: str) -> Self:
        """`zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/FOLDER`, or `zookeepers://…` for
        TLS. Raises `Invalid`."""
        parts = urlsplit(url)
        who, _, where = parts.netloc.rpartition("@")
        user, _, password = who.partition(":")
        port = {"zookeeper": PORT, "zookeepers": TLS_PORT}.get(parts.scheme)
        hosts = [host if ":" in host else f"{host}:{port}" for host in where.split(",")]
        folder = parts.path.rstrip("/")
        named = port is not None and all(map(_is_host, hosts))
        if not named or not folder or bool(who) != bool(user and password):
            shown = f"{parts.scheme}://{where}{parts.path}"
            raise Invalid(
                "ZooKeeper is named zookeeper://HOST:PORT,HOST:PORT/FOLDER, zookeepers:// with "
                "TLS, with USER:PASSWORD@ before the hosts where it asks for them; got "
                f"{shown!r:.200}.",
                field="zookeeper",
            )
        encrypted = port == TLS_PORT
        return cls(",".join(hosts), folder, unquote(user), unquote(password), encrypted)

    def session(self, session_s: float = SESSION_S, tls: ClientTls | None = None) -> Any:
        """A session, not connected yet."""
        used = (tls or ClientTls()) if self.encrypted else None
        return session(self.hosts, self.user, self.password, session_s, used)


def _is_host(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65_536


def addresses(ensemble: Ensemble, tls: ClientTls | None = None) -> list[str]:
    """The URLs of the instances that are there. Raises `Unavailable`."""
    zookeeper, found = ensemble.session(tls=tls), []
    try:
        zookeeper.start(SESSION_S)
        folder = f"{ensemble.folder}/instances"
        for id in sorted(zookeeper.get_children(folder)):
            try:
                value, _ = zookeeper.get(f"{folder}/{id}")
            except NoNodeError:  # it went meanwhile
                continue
            record = from_json(value, InstanceRecord)
            found.append(record.address)
    except NoNodeError:
        found = []
    except zookeeper.handler.timeout_exception as exc:
        raise Unavailable(f"ZooKeeper at {ensemble.hosts} is not reached. Try again.") from exc
    finally:
        zookeeper.stop()
        zookeeper.close()
    if not found:
        raise Unavailable(
            f"ZooKeeper at {ensemble.hosts} knows no instance in {ensemble.folder}. Start one with "
            "`tms serve --cluster`, or check the folder."
        )
    return found


def cluster_id(connect: Callable[[], Any], folder: str) -> str:
    """The id of the cluster of this folder, a new one where there is none. Raises `Unavailable`."""
    zookeeper = connect()
    new = uuid.uuid4().hex
    try:
        zookeeper.start(SESSION_S)
        zookeeper.ensure_path(folder)
        try:
            zookeeper.create(f"{folder}/{CLUSTER}", new.encode())
            return new
        except NodeExistsError:
            return str(zookeeper.get(f"{folder}/{CLUSTER}")[0].decode())
    except (KazooException, zookeeper.handler.timeout_exception) as exc:
        raise Unavailable(
            f"ZooKeeper is not reached, or refuses {folder} ({exc!r:.100}). Try again."
        ) from exc
    finally:
        zookeeper.stop()
        zookeeper.close()


class ZooKeeperMember:
    """One instance in the folder of its cluster, which has the id `cluster`; a `ClusterMember`.
    `connect` makes a session, of `session_s`."""

    def __init__(
        self,
        connect: Callable[[], Any],
        folder: str,
        record: InstanceRecord,
        session_s: float = SESSION_S,
        cluster: str = "",
    ) -> None:
        self._cluster_path = f"{folder}/{CLUSTER}"
        self._cluster = cluster.encode()
        self._folder = f"{folder}/instances"
        self._path = f"{self._folder}/{record.id}"
        self.record = record
        self.session_s = session_s
        self._shown = record  # in its node
        self._sessions = Sessions(connect, self, 2 * session_s)
        self._changed: Callable[[], None] = lambda: None
        self.view = MembershipView()
        self.state = MembershipState.LOST

    def join(self, changed: Callable[[], None]) -> None:
        """Become a member; as in `ClusterMember`."""
        self._changed = changed
        self._sessions.start()

    def show(self, record: InstanceRecord) -> None:
        """Show this record to the others; as in `ClusterMember`."""
        self.record = record
        self._sessions.poke()

    def leave(self) -> None:
        """Cease to be a member; as in `ClusterMember`."""
        self._sessions.stop()

    # -- in the thread of the sessions ---------------------------------------------------------

    def begin(self, zookeeper: Any) -> None:
        """Be seen."""
        zookeeper.ensure_path(self._folder)
        if self._cluster:
            zookeeper.ensure_path(self._cluster_path)
            if zookeeper.get(self._cluster_path)[0] != self._cluster:  # ZooKeeper has lost its data
                zookeeper.set(self._cluster_path, self._cluster)
        self._shown = self.record
        value = msgspec.json.encode(self._shown)
        try:
            zookeeper.create(self._path, value, ephemeral=True)
        except NodeExistsError:  # of the session before, which ZooKeeper has not ended yet
            zookeeper.delete(self._path)
            zookeeper.create(self._path, value, ephemeral=True)
        _log.info("cluster_joined", instance=self.record.id)

    def look(self, zookeeper: Any) -> None:
        """Read the records of all instances."""
        record = self.record
        if record != self._shown:
            zookeeper.set(self._path, msgspec.json.encode(record))
            self._shown = record
        self._become(MembershipState.MEMBER, self._read(zookeeper))

    def interrupted(self) -> None:
        """The others may see this instance, or not."""
        if self.state is MembershipState.MEMBER:
            self._become(MembershipState.SUSPENDED, self.view)

    def ended(self, lost: bool) -> None:
        """The others see this instance no more."""
        if lost:
            _log.warning("cluster_lost", instance=self.record.id)
        self._become(MembershipState.LOST, self.view)

    def _read(self, zookeeper: Any) -> MembershipView:
        poke = self._sessions.poke
        ids, folder = zookeeper.get_children(self._folder, watch=poke, include_data=True)
        number, instances = folder.pzxid, []
        for id in sorted(ids):
            try:
                value, node = zookeeper.get(f"{self._folder}/{id}", watch=poke)
                instances.append(from_json(value, InstanceRecord))
            except NoNodeError:  # it went meanwhile: the folder has changed again
                continue
            except msgspec.MsgspecError as error:
                _log.warning("instance_unreadable", instance=id, error=str(error))
                continue
            number = max(number, node.mzxid)
        return MembershipView(number, tuple(instances))

    def _become(self, state: MembershipState, view: MembershipView) -> None:
        if (state, view) != (self.state, self.view):
            self.state, self.view = state, view
            self._changed()
