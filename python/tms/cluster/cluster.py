"""One of the instances that share a store: it knows what it should own, may answer from memory only
while no other has moved its fence, and asks the owners for the rest.

    membership ─▶ placement ─▶ settle_roles: close what others should own, open the rest
    fence      ─▶ recheck: close what others have taken over

Invariants

* Owners are computed from the newest view. A view that is wrong for a moment does no harm, because
  the epoch of a partition decides who owns it.
* Between a request and its answer the instance looks whether others have moved its record
  (`confirm`).
* While its membership is unknown the instance writes nothing; once it has lost it, it owns nothing.
* No request waits for an instance that is not in the view.
* An instance that cannot work owns nothing, though ZooKeeper sees it (`fitness`).
"""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from tms.cluster.events import ClusterEvents
from tms.cluster.fence import InstanceFence
from tms.cluster.fitness import Fitness, unfit, unfit_reason
from tms.cluster.membership import ClusterMember, InstanceRecord, MembershipState, MembershipView
from tms.cluster.ownership import Ownership
from tms.cluster.peers import ClusterPeer, PeerConnector
from tms.cluster.placement import Instance, Placement
from tms.cluster.remote_decisions import RemoteDecisions
from tms.cluster.skew import ClockSkews
from tms.errors import NotOwner, StorageUnavailable, TMSError, Unavailable
from tms.model import keys
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.runtime.events import EventLog
from tms.store.base import Map
from tms.topics.owners import At, Here, Peer
from tms.topics.sharding import SHARD_JOURNALS, count_shards

ASKING_THREADS = 32
LOOK_S = 5.0  # between two looks whether owners were chosen, without a sign of a change
AGAIN_S = 0.5  # after which roles that could not be settled are tried again
REACH_S = 0.25  # between two examinations of this instance
COORDINATOR = (0, 0)  # its place, behind which are those of shards; no topic has the uid 0
_log = EventLog(__name__)


class HeldShards(Protocol):
    """The shards of a process."""

    @property
    def held(self) -> frozenset[int]:
        """The numbers of the shards that it holds."""
        ...


class RolePlayer(Protocol):
    """The engine, which opens and closes the roles that an instance owns."""

    @property
    def coordinates(self) -> bool:
        """True if it coordinates transactions."""
        ...

    @property
    def shards(self) -> HeldShards:
        """Its shards."""
        ...

    def settle_roles(self, cluster: "Cluster") -> None:
        """Open the roles that this process should hold, close those that others should. One thread
        at a time calls it."""
        ...

    def resign(self, cluster: "Cluster", reason: TMSError | None = None) -> None:
        """Close the roles that others should hold; with a reason all roles, and then all
        partitions. Asks no store."""
        ...

    def recheck(self, cluster: "Cluster") -> None:
        """Forget everything that other instances have taken over or changed."""
        ...


class _Owners:
    """The owners of partitions and roles while these instances are there and these are pinned: as
    many threads as like may ask."""

    def __init__(self, view: MembershipView, pins: Mapping[str, str]) -> None:
        self.view = view
        self.pins = pins  # ids of instances by places
        self._records = {record.id: record for record in view.instances}
        self._of: dict[tuple[int, int], list[InstanceRecord]] = {}  # by uid and partitions
        out = unfit(view.instances)
        instances = [  # a draining one owns rather than an unfit one, which would refuse requests
            Instance(one.id, one.capacity, one.draining)
            for one in view.instances
            if one.id not in out
        ]
        self._placement = Placement(instances) if instances else None

    def of(self, place: tuple[int, int], partitions: int) -> InstanceRecord:
        """The owner of a place. Raises `Unavailable` while the view shows no instance."""
        uid, number = place
        owners = self._of.get((uid, partitions))
        if owners is None:
            owners = self._of[uid, partitions] = self._find(uid, partitions)
        return owners[number]

    def _find(self, uid: int, partitions: int) -> list[InstanceRecord]:
        if self._placement is None:
            raise Unavailable("This instance does not see the others yet. Try again.")
        pins = {n: self.pins.get(f"{uid}/{n}", "") for n in range(partitions)} if self.pins else {}
        return [self._records[id] for id in self._placement.owners(uid, partitions, pins)]


class Cluster:
    """An instance among others. Thread-safe."""

    def __init__(
        self,
        metadata: Map,
        clock: Clock,
        member: ClusterMember,
        ownership: Ownership,
        connect: PeerConnector,
        lifetime_ms: int,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._member = member
        self._record = record = member.record
        self._ownership = ownership
        self._connect = connect
        self.identity = connect.identity
        self._fence = InstanceFence(metadata, record.id)
        self.name = self._fence.name
        self.decisions = RemoteDecisions(self.coordinator, clock, lifetime_ms)
        self.taken_over = self.released = 0  # partitions
        self.events = ClusterEvents(record.id, clock)
        self.skews = ClockSkews(clock)
        self._shards = count_shards(metadata)
        self._opening_s = 0.0  # of transactions and shards, the last time
        self._player: RolePlayer | None = None
        self._asking = ThreadPoolExecutor(ASKING_THREADS, "tms-peers")
        self._fitness = Fitness(clock, ownership.away_s, member.session_s, self._require_answer)
        self._cut = ""  # why all requests are refused
        self._draining = False
        self._ends = False  # soon
        self._checking = threading.Lock()  # held during a recheck
        self._lock = threading.Lock()  # guards what follows
        self._owners = _Owners(MembershipView(), {})
        self._peers: dict[tuple[str, str], ClusterPeer] = {}  # by id and address
        self._owes = False  # an announcement
        self._changed = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    # -- playing roles -------------------------------------------------------------------------

    def play(self, player: RolePlayer) -> None:
        """Be an instance from now on, in the background. Raises the error that prevents it."""
        self._player = player
        self._fence.join()
        self._ownership.confirm()
        self._read_pins()
        self._thread = roles = threading.Thread(target=self._run, name="tms-cluster", daemon=True)
        roles.start()
        examine = partial(self._keep_examining, roles)
        threading.Thread(target=examine, name="tms-reach", daemon=True).start()
        self._member.join(self._look_round)

    def play_no_more(self) -> None:
        """Let others own everything; the roles stay as they are."""
        ended, self._ended = self._ended, True
        self._changed.set()
        if self._thread is not None and not ended:
            self._thread.join()
        self._member.leave()

    def settle_again(self) -> None:
        """Something that this instance owned was lost: perhaps it should own it again."""
        self._changed.set()

    def drain(self, ends: bool = False) -> None:
        """Let others own everything, as long as there are others. An instance that soon `ends`
        repeats no request to its peers: they may end, too."""
        self._draining = True
        if ends:
            with self._lock:
                self._ends = True
                asked = [*self._peers.values()]
            for peer in asked:
                peer.ask_once()
        self._member.show(msgspec.structs.replace(self._member.record, draining=True))

    def release(self) -> None:
        """Be an instance no more."""
        self.play_no_more()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._fitness.close()
        try:
            self._fence.leave()
        except TMSError as error:  # the next process with this id writes over it
            _log.warning("leaving_failed", error=error.message)
        alone = all(one.id == self._record.id for one in self._member.view.instances)
        self._ownership.release(free=alone)

    def watch(self, when_lost: Callable[[TMSError], None]) -> None:
        """Call `when_lost` once the store is owned otherwise."""
        self._ownership.watch(when_lost)

    @property
    def lost(self) -> TMSError | None:
        """The reason why this process can own nothing any more; None if it can."""
        return self._ownership.lost

    def _look_round(self) -> None:
        """Follow a new view: give up the requests to instances that it does not show."""
        instances = self.view.instances
        self.identity.see({one.id: one.keys for one in instances})
        here = {(one.id, one.address) for one in instances}
        with self._lock:
            gone = [self._peers.pop(key) for key in self._peers.keys() - here]
        for peer in gone:
            peer.give_up()
        self._changed.set()

    def _run(self) -> None:
        settled = True
        while not self._ended:
            self._changed.wait(LOOK_S if settled else AGAIN_S)
            self._changed.clear()
            if self._ended:
                return
            try:
                self.identity.turn()  # its keys are shown with what it reaches
                self.settle()
                self._measure_skews()
                settled = True
            except TMSError as error:
                _log.warning("roles_unsettled", error=error.message)
                settled = False
            except Exception:
                _log.exception("roles_unsettled")
                settled = False

    def _measure_skews(self) -> None:
        with suppress(Unavailable):  # an instance has just gone
            self.skews.look(self.others(), self.ask)

    def _keep_examining(self, roles: threading.Thread) -> None:
        while not self._ended:
            try:
                self.examine()
            except Exception:
                if not self._ended:
                    _log.exception("reach_unknown")
            roles.join(REACH_S)

    def examine(self) -> None:
        """Show the others what this instance reaches, and resign the roles that it cannot hold.
        Never waits for the store."""
        member = self._member
        view = self.view.instances
        record = msgspec.structs.replace(
            member.record, draining=self._draining, keys=self.identity.keys
        )
        record = self._fitness.look(record, view, self._ownership.reached_s)
        if record != member.record:
            member.show(record)
        resigns = record.away and record.id in unfit(view)
        self._cut = " ".join(self.reasons()) if resigns else ""
        if resigns and self._player is not None:
            self._player.resign(self, StorageUnavailable(self._cut))

    def _require_answer(self, record: InstanceRecord, timeout_s: float) -> None:
        self._peer(record).answers(timeout_s)

    def require_reach(self) -> None:
        """Raise `StorageUnavailable` if this instance has resigned and does not reach the store."""
        if self._cut:
            raise StorageUnavailable(self._cut)

    def settle(self) -> None:
        """Open what this instance should own, close what others should, and announce what is still
        to be announced. Raises the error that prevents it; it may be called again."""
        if self._owes:
            self._fence.announce()
            self._owes = False
        self._read_pins()
        if self._player is None:
            return
        player, began_s = self._player, self._clock.monotonic_s()
        before = player.coordinates, player.shards.held
        try:
            player.settle_roles(self)
        finally:
            coordinates, shards = player.coordinates, player.shards.held
            if coordinates > before[0] or shards - before[1]:
                self._opening_s = self._clock.monotonic_s() - began_s
            self.events.look(self, coordinates, len(shards), self._opening_s)

    # -- who owns what -------------------------------------------------------------------------

    @property
    def view(self) -> MembershipView:
        """The newest view."""
        return self._member.view

    @property
    def id(self) -> str:
        """The id of this instance."""
        return self._record.id

    @property
    def number(self) -> int:
        """The number of this instance, which stays with its id."""
        return self._record.number

    @property
    def state(self) -> MembershipState:
        """The state of the membership of this instance."""
        return self._member.state

    @property
    def coordinates(self) -> bool:
        """True if this instance should coordinate transactions."""
        try:
            return self.role_owner().id == self._record.id
        except Unavailable:
            return False

    def shards(self) -> frozenset[int]:
        """The numbers of the shards that this instance should hold."""
        try:
            ids = [self.role_owner(1 + number).id for number in range(self._shards)]
        except Unavailable:
            return frozenset()
        return frozenset(number for number, id in enumerate(ids) if id == self._record.id)

    def role_owner(self, number: int = 0) -> InstanceRecord:
        """The instance that should coordinate transactions (0), or hold a shard (1 more than its
        number). Raises `Unavailable`."""
        return self._owner((COORDINATOR[0], number), 1 + self._shards)

    def owner(self, name: TopicName, place: tuple[int, int], partitions: int) -> InstanceRecord:
        """The instance that should own a partition. Raises `Unavailable`."""
        place, partitions = self.place_of(name, place, partitions)
        return self._owner(place, partitions)

    def place_of(
        self, name: TopicName, place: tuple[int, int], partitions: int
    ) -> tuple[tuple[int, int], int]:
        """The place, and the number of places, by which a partition is placed. A journal has the
        place of the role that it belongs to."""
        if name.namespace != SYSTEM_NAMESPACE:
            return place, partitions
        number = 1 + place[1] if name in SHARD_JOURNALS else 0
        return (COORDINATOR[0], number), 1 + self._shards

    def peer_of(self, name: TopicName, place: tuple[int, int], partitions: int) -> Peer | None:
        """The other instance that owns a partition, None: this one; as in `Owners`."""
        owner = self.owner(name, place, partitions)
        return None if owner.id == self._record.id else self._peer(owner)

    def route_to(self, id: str) -> Here | At | None:
        """The route to an instance; None if the view does not show it."""
        if id == self.id:
            return Here()
        return next((At(peer) for peer in self.others() if peer.name == id), None)

    def shows(self, id: str, address: str) -> bool:
        """True if the view shows an instance at an address."""
        return any((id, address) == (one.id, one.address) for one in self.view.instances)

    def others(self) -> list[ClusterPeer]:
        """The other instances that are there."""
        return [self._peer(one) for one in self.view.instances if one.id != self.id]

    def coordinator(self) -> ClusterPeer:
        """The instance that coordinates, if it is another one. Raises `Unavailable`."""
        return self._other(0)

    def shard_owner(self, number: int) -> ClusterPeer:
        """The instance that should own a shard, if it is another one. Raises `Unavailable`."""
        return self._other(1 + number)

    def _other(self, role: int) -> ClusterPeer:
        owner = self.role_owner(role)
        if owner.id == self._record.id:
            raise _begins(role)
        return self._peer(owner)

    def stats(self, player: RolePlayer) -> dict[str, int]:
        """Counters, by the names of `EngineStats`."""
        return {
            "cluster_instances": len(self.view.instances),
            "cluster_coordinates": int(player.coordinates),
            "cluster_shards": len(player.shards.held),
            "cluster_taken_over": self.taken_over,
            "cluster_released": self.released,
            "cluster_fates_asked": self.decisions.asked,
            "cluster_opening_ms": round(self._opening_s * 1_000),
            "cluster_clock_skew_ms": self.skews.largest_ms(),
            "cluster_store_away": int(self._member.record.away),
            "cluster_unfit": int(self.id in unfit(self.view.instances)),
        }

    def coordinator_id(self) -> str:
        """The id of the instance that should coordinate; empty while the view does not say."""
        try:
            return self.role_owner().id
        except Unavailable:
            return ""

    def not_coordinator(self) -> TMSError:
        """The error of an instance that is asked for transactions and does not coordinate them."""
        return self._not_role_owner(0)

    def not_shard_owner(self, number: int) -> TMSError:
        """The error of an instance that is asked for a shard that it does not hold; as in
        `Owners`."""
        return self._not_role_owner(1 + number)

    def _not_role_owner(self, role: int) -> TMSError:
        try:
            owner = self.role_owner(role)
        except Unavailable as error:
            return error
        if owner.id == self._record.id:
            return _begins(role)
        return NotOwner(f"The instance {owner.id} keeps this. Try again.", owner=owner.id)

    def not_owner(self) -> TMSError:
        """The error of an instance that is asked for what another one owns."""
        return NotOwner("Another instance has taken this over. Try again.", owner=None)

    def pin(self, place: str, id: str | None) -> None:
        """Choose the owner of a place (`UID/NUMBER`; see `place_of`); None: as it is placed. Raises
        `StorageUnavailable` when others do at the same time."""
        raw = self._metadata.get(keys.PINS)
        pins = {} if raw is None else from_json(raw, dict[str, str])
        pins.pop(place, None)
        if id is not None:
            pins[place] = id
        if not self._metadata.compare_and_set(keys.PINS, raw, msgspec.json.encode(pins)):
            raise StorageUnavailable("Owners are being chosen by others. Try again.")
        self._read_pins()
        self.announce()

    def is_pinned(self, place: str) -> bool:
        """True if an owner was chosen for a place (`UID/NUMBER`)."""
        return place in self._owners.pins

    def _owner(self, place: tuple[int, int], partitions: int) -> InstanceRecord:
        if self._member.state is MembershipState.LOST or self._ended:
            raise Unavailable(
                f"The instance {self._record.id} is not among the others now: ZooKeeper is not "
                "reached, or has ended its session. Go to another instance, or try again."
            )
        owners = self._owners
        if owners.view is not self._member.view:
            with self._lock:
                owners = self._owners = _Owners(self._member.view, self._owners.pins)
        return owners.of(place, partitions)

    def _peer(self, record: InstanceRecord) -> ClusterPeer:
        key = (record.id, record.address)
        with self._lock:
            peer = self._peers.get(key)
            if peer is None:
                if not self.shows(*key):
                    raise Unavailable(f"The instance {record.id} has just gone. Try again.")
                peer = self._peers[key] = self._connect(record)
                if self._ends:
                    peer.ask_once()
        return peer

    def _read_pins(self) -> None:
        raw = self._metadata.get(keys.PINS)
        pins = {} if raw is None else from_json(raw, dict[str, str])
        with self._lock:
            if pins == self._owners.pins:
                return
            self._owners = _Owners(self._owners.view, pins)
        self._changed.set()

    # -- owning --------------------------------------------------------------------------------

    def is_confirmed(self) -> bool:
        """True if `confirm` surely has nothing to do; from any thread, without waiting."""
        return False

    def confirm(self) -> None:
        """Raise `NotOwner` if this instance owns nothing now; as in `Owners`."""
        if self._ownership.lost is not None:
            self._ownership.confirm()
        self.require_reach()
        if self._look() is None:
            return
        with self._checking:
            moved = self._look()
            if moved is not None and self._player is not None:
                self._read_pins()
                self._player.recheck(self)
                self._fence.settle(moved)

    def _look(self) -> int | None:
        try:
            return self._fence.look()
        except NotOwner:
            self._ownership.confirm()  # says it better if the store is owned otherwise
            raise

    def require_owner(self) -> None:
        """Raise `NotOwner` or `StorageUnavailable` if this instance may not write now; as in
        `Owners`."""
        if self._ownership.lost is not None:
            self._ownership.confirm()
        self.require_member()

    def require_member(self) -> None:
        """Raise `StorageUnavailable` if this instance surely may not write now; as in `Owners`."""
        if self._member.state is not MembershipState.MEMBER:
            raise StorageUnavailable(self.reasons()[-1])

    def reasons(self) -> list[str]:
        """The reasons why this instance cannot store, in sentences."""
        reasons = self._ownership.reasons()
        if self._member.state is not MembershipState.MEMBER:
            reasons.append(
                f"The instance {self.id} cannot tell whether the others see it, so it stores "
                "nothing: ZooKeeper is not reached. Try again, or go to another instance."
            )
        elif self.id in unfit(self.view.instances):
            reasons.append(unfit_reason(self._member.record, self._member.session_s))
        return reasons

    def count_released(self, partitions: int) -> None:
        """Count partitions that this instance released to others."""
        self.released += partitions

    def hindrances(self) -> list[str]:
        """The other instances that cannot work as they should now, in sentences."""
        others = (one.id for one in self.view.instances if one.away and one.id != self.id)
        return [f"The instance {id} does not reach the store." for id in others]

    def fence(self, owners: Collection[str]) -> None:
        """Let these instances answer nothing from memory; as in `Owners`."""
        self._fence.fence(owners)
        self.taken_over += 1

    def announce(self) -> None:
        """Let no instance answer by what it knew of topics; as in `Owners`. An announcement that
        failed is repeated by `settle`."""
        self._owes = True
        try:
            self._fence.announce()
        except TMSError:
            self._changed.set()
            raise
        self._owes = False

    def ask(self, question: Callable[[], None]) -> None:
        """Ask a peer in the background; as in `Owners`."""
        self._asking.submit(question)


def _begins(role: int) -> Unavailable:
    what = f"keep the shard {role - 1}" if role else "coordinate"
    return Unavailable(f"This instance begins to {what}. Try again.")
