"""The owner of a store that several processes can reach: one process at a time, named by a record.

    owner   OwnerRecord   in the map `metadata`; absent while the store never had an owner

Invariants

* The record changes by compare-and-set only, and every owner has an epoch of its own.
* An owner answers a request only if it found itself in the record after the request had come, and
  acknowledges a write only if it found itself there after it had written (`confirm`). So no clock
  decides what is true: an owner that was paused, cut off or replaced refuses, however late it
  wakes.
* An owner moves the record's `beat` while it lives. The beat only says which owner a newcomer may
  replace without being told to: an owner that has released the store, whose process is gone, or
  whose beat stands still for `silent_s` by the newcomer's own clock. A wrong guess takes the store
  from an owner that lives, which is told so; nothing is lost or repeated by it.
* Beats that get no answer tell the owner itself that the store is away.
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from tms.cluster.fence import remove_all
from tms.errors import (
    AlreadyRunning,
    DataCorrupt,
    NotOwner,
    StorageUnavailable,
    TMSError,
    Unavailable,
)
from tms.model.keys import OWNER
from tms.model.topic import TopicName
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.runtime.events import EventLog
from tms.runtime.options import named_fields
from tms.store.base import Map, Store
from tms.topics.sweep import open_metadata

BEATS_MISSED = 3  # after which the store is away
_log = EventLog(__name__)


@named_fields
@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """The times after which owners of a shared store notice each other. Seconds."""

    beat_s: float = 1.0
    silent_s: float = 10.0  # so long without a beat, and an owner is taken for dead


class OwnerRecord(msgspec.Struct, frozen=True):
    """The owner of a store. People are told its `name`; `process` says on its own machine if it
    lives."""

    epoch: int
    instance: str
    name: str
    machine: str = ""
    process: str = ""
    beat: int = 0
    released: bool = False
    cluster: str = ""  # the id of the cluster; empty: no cluster, or one of a version without ids


class SharedBy(NamedTuple):
    """The cluster that shares a store: its folder, and its random id if it has one."""

    folder: str
    id: str = ""


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class Ownership:
    """The ownership of one store by this process, or by all instances of the cluster `shared_by`.
    Thread-safe once taken."""

    name = ""  # in records of partitions: it owns all of them

    def __init__(
        self,
        metadata: Map,
        clock: Clock,
        name: str,
        limits: OwnerLimits | None = None,
        wait: Callable[[float], None] = _wait,
        shared_by: SharedBy | None = None,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._limits = limits or OwnerLimits()
        self._wait = wait
        self._record = OwnerRecord(0, uuid.uuid4().hex, name, machine(), process(os.getpid()) or "")
        if shared_by is not None:  # whose process it is says nothing of the others
            folder, id = shared_by
            name = f"the cluster at {folder}" + (f" (cluster id {id})" if id else "")
            self._record = OwnerRecord(0, f"cluster {folder}", name, cluster=id)
        self._name = self._record.name
        self._cluster = self._record.cluster
        self._raw = b""
        self.away_s = BEATS_MISSED * self._limits.beat_s  # without an answer, the store is away
        self.reached_s: float | None = None  # when the newest answered beat began; None: no beats
        self._reason: NotOwner | None = None
        self._lock = threading.Lock()  # guards the next
        self._when_lost: Callable[[TMSError], None] | None = None
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    # -- taking --------------------------------------------------------------------------------

    def take(self, take_over: bool = False) -> None:
        """Own the store, from an owner that lives only with `take_over`. Raises `AlreadyRunning`
        that names it; `StorageUnavailable`."""
        watched, since_s = None, 0.0
        while True:
            raw = self._metadata.get(OWNER)
            found = None if raw is None else _decoded(raw)
            if found is not None and self._is_own(found):
                self._record, self._raw = found, raw or b""  # an answer was lost
                return
            now_s = self._clock.monotonic_s()
            free = found is None or found.released or take_over or _is_gone(found)
            if free or (raw == watched and now_s - since_s >= self._limits.silent_s):
                self._claim(raw, found)
            elif watched is None:
                watched, since_s = raw, now_s
            elif raw != watched:
                assert found is not None
                raise AlreadyRunning(
                    f"The store is in use by {found.name}, which is alive. Use that one, or stop "
                    "it first. To replace it nevertheless, start with --take-over "
                    "(`tms.open(…, take_over=True)`): from then on it refuses everything.",
                    owner=found.name,
                )
            else:
                self._wait(self._limits.beat_s / 4)

    def _claim(self, raw: bytes | None, found: OwnerRecord | None) -> None:
        """Try to become the owner after `found`; the next look tells whether it worked."""
        epoch = 1 if found is None else found.epoch + 1
        record = msgspec.structs.replace(self._record, epoch=epoch)
        try:
            if self._metadata.compare_and_set(OWNER, raw, msgspec.json.encode(record)):
                before = None if found is None else found.name
                _log.info("store_owned", name=record.name, epoch=epoch, before=before)
                remove_all(self._metadata)
        except StorageUnavailable as error:
            _log.warning("owning_unclear", error=error.message)

    # -- owning --------------------------------------------------------------------------------

    def start(self) -> None:
        """Show from now on, in a thread of its own, that this owner lives."""
        self.reached_s = self._clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="tms-owner", daemon=True)
        self._thread.start()

    def watch(self, when_lost: Callable[[TMSError], None]) -> None:
        """Call `when_lost` once another process has taken the store over, in that thread or, if it
        has already, in this one."""
        with self._lock:
            self._when_lost = when_lost
        self._tell()

    @property
    def lost(self) -> TMSError | None:
        """The reason why this process owns the store no more; None as far as it knows that it
        does."""
        return self._reason

    def reasons(self) -> list[str]:
        """The reasons why this owner surely cannot store now, in sentences."""
        if self.reached_s is None:
            return []
        silent_s = self._clock.monotonic_s() - self.reached_s
        if silent_s <= self.away_s:
            return []
        return [
            f"The store has not answered {self._name} for {silent_s:.0f} s. It is asked "
            "again until it answers. Look at the store, and at the network between the two."
        ]

    def confirm(self) -> None:
        """Raise `NotOwner` unless this process owns the store at a moment during this call."""
        if self._reason is not None:
            raise NotOwner(self._reason.message, **self._reason.details)
        self._read_again()

    def require_member(self) -> None:
        """Do nothing; as in `topics.owners.Owners`. An owner that has lost the store learns it when
        it writes."""

    def require_owner(self) -> None:
        """Raise `NotOwner` unless this process owns the store; as in `topics.owners.Owners`."""
        self.confirm()

    def fence(self, owners: Collection[str]) -> None:
        """Do nothing; as in `topics.owners.Owners`. Taking the store has removed the records of its
        instances."""

    def announce(self) -> None:
        """Do nothing; as in `topics.owners.Owners`. No other process has to know."""

    def peer_of(self, name: TopicName, place: tuple[int, int], partitions: int) -> None:
        """None: this process owns everything; as in `topics.owners.Owners`."""

    def not_shard_owner(self, number: int) -> TMSError:
        """The error of a shard that is not open: this process owns all of them."""
        return Unavailable(f"The shard {number} is being opened. Try again.")

    def ask(self, question: Callable[[], None]) -> None:
        """Not called: there are no peers; as in `topics.owners.Owners`."""
        raise NotImplementedError

    def beat(self) -> None:
        """Show once that this owner lives. Raises `NotOwner`, `StorageUnavailable`."""
        began_s = self._clock.monotonic_s()
        if not self._change(beat=self._record.beat + 1, released=False):
            self._raw, self._record = self._read_again()  # a beat whose answer was lost, or another
        self.reached_s = began_s

    def release(self, free: bool = True) -> None:
        """Release the store, so that the next owner need not wait, if it is `free`. A second call
        does nothing."""
        ended, self._ended = self._ended, True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if ended or not free or self._reason is not None:
            return
        try:
            self._raw, self._record = self._read_again()
            self._change(released=True)
        except TMSError as error:  # the next owner waits until the beat has stood still
            _log.warning("releasing_failed", error=error.message)

    # -- inside --------------------------------------------------------------------------------

    def _is_own(self, found: OwnerRecord) -> bool:
        """True if this process, or its cluster, owns the store by this record. An instance of a
        version without ids of clusters leaves out the id."""
        other = found.cluster and self._cluster and found.cluster != self._cluster
        return found.instance == self._record.instance and not other

    def _change(self, **fields: object) -> bool:
        fields |= {"name": self._name, "cluster": self._cluster}
        record = msgspec.structs.replace(self._record, **fields)
        raw = msgspec.json.encode(record)
        done = self._metadata.compare_and_set(OWNER, self._raw, raw)
        if done:
            self._raw, self._record = raw, record
        return done

    def _read_again(self) -> tuple[bytes, OwnerRecord]:
        """The record, which is this process's. Raises `NotOwner`."""
        raw = self._metadata.get(OWNER)
        found = None if raw is None else _decoded(raw)
        if raw is not None and found is not None and self._is_own(found):
            return raw, found
        by = "somebody who removed the owner's record" if found is None else found.name
        reason = NotOwner(
            f"This process ({self._name}) does not own its store any more: {by} has taken "
            "it over. Go there. To have the store back, stop that one and start this one anew.",
            owner=None if found is None else by,
        )
        self._reason = self._reason or reason
        self._wake.set()
        raise reason

    def _run(self) -> None:
        while not self._ended and self._reason is None:
            if self._wake.wait(self._limits.beat_s):
                continue
            try:
                self.beat()
            except NotOwner:
                pass
            except TMSError as error:
                _log.warning("beat_failed", error=error.message)
            except Exception:
                _log.exception("beat_failed")
        if self._reason is not None and not self._ended:
            _log.error("store_lost", why=self._reason.message)
            self._tell()

    def _tell(self) -> None:
        with self._lock:
            if self._reason is None or self._when_lost is None:
                return
            when_lost, self._when_lost = self._when_lost, None
        when_lost(self._reason)


def machine() -> str:
    """The name of a boot of this machine and of a space of process ids on it; empty where that is
    unknown, so that no owner is taken for dead by its process id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process(pid: int) -> str | None:
    """The name of a living process of this machine, which no later process with its id has; None if
    there is no such process."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else f"{pid} {fields[18]}"  # and when it began


def _is_gone(found: OwnerRecord) -> bool:
    """True if an owner surely lives no more, because it ran on this machine."""
    if not found.machine or not found.process or found.machine != machine():
        return False
    return process(int(found.process.partition(" ")[0])) != found.process


def _decoded(raw: bytes) -> OwnerRecord:
    try:
        return from_json(raw, OwnerRecord)
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(
            f"The record `{OWNER.decode()}` of the store is damaged ({exc}). When no process uses "
            "the store, remove that record, and start again."
        ) from exc


def own(
    store: Store, clock: Clock, name: str, limits: OwnerLimits, take_over: bool = False
) -> Ownership | None:
    """The ownership of a shared store, shown from now on; None for a store that only one process
    can reach. People are told `name`. Raises as `Ownership.take`."""
    if not store.shared:
        return None
    ownership = Ownership(open_metadata(store), clock, name, limits)
    ownership.take(take_over)
    ownership.start()
    return ownership
