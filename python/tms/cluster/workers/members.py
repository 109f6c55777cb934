"""The members of a cluster of workers: the supervisor tells the view, and asks each for a sign of
life.

    worker:      its record ──▶           ◀── the view, and `ping` ──▶ pong
    supervisor:  a worker that is silent, or whose connection has ended, is killed; once its process
                 is gone it leaves the view

Invariants

* A worker leaves the view after its process has ended: by then it has no map open, and writes
  nothing any more.
* A worker whose supervisor is gone ends at once.
"""

import os
import socket
import threading
from collections.abc import Callable

import msgspec

from tms.cluster.membership import InstanceRecord, MembershipState, MembershipView
from tms.cluster.workers.frames import Frames
from tms.errors import Unavailable
from tms.runtime.events import EventLog

PING_S = 1.0
_log = EventLog(__name__)


class ViewMessage(msgspec.Struct):
    """A message of the supervisor: the view, which also asks the worker for a sign of life."""

    number: int
    instances: list[InstanceRecord]


class WorkerMembers:
    """The workers, as the supervisor knows them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._present: dict[str, InstanceRecord] = {}

    def serve(self, frames: Frames, silent_s: float) -> None:
        """Talk to a worker until it is silent for so long, or its connection has ended. Its first
        message has named it."""
        record = frames.receive(InstanceRecord)
        frames.connection.settimeout(silent_s)
        seen = -1
        with self._changed:
            self._show(record)
        try:
            while True:
                with self._changed:
                    if self._number == seen:
                        self._changed.wait(PING_S)
                    seen, present = self._number, [*self._present.values()]
                frames.send(ViewMessage(seen, present))
                now = frames.receive(InstanceRecord)
                if now != record:
                    record = now
                    with self._changed:
                        self._show(record)
        except TimeoutError:
            _log.warning("worker_silent", worker=record.id, seconds=silent_s)
        except Unavailable:
            return
        finally:
            frames.close()

    def gone(self, id: str) -> None:
        """The process of a worker has ended."""
        with self._changed:
            if self._present.pop(id, None) is not None:
                self._number += 1
                self._changed.notify_all()

    @property
    def ids(self) -> set[str]:
        """The workers that are there."""
        with self._changed:
            return set(self._present)

    def _show(self, record: InstanceRecord) -> None:
        self._present[record.id] = record
        self._number += 1
        self._changed.notify_all()


class WorkerMember:
    """A worker among the others; see `ClusterMember`."""

    def __init__(
        self, connect: Callable[[], socket.socket], record: InstanceRecord, session_s: float
    ) -> None:
        self._connect = connect
        self.session_s = session_s
        self._changed: Callable[[], None] = lambda: None
        self._left = False
        self.record = record
        self.view = MembershipView()
        self.state = MembershipState.LOST

    def join(self, changed: Callable[[], None]) -> None:
        """Become a member; as in `ClusterMember`."""
        self._changed = changed
        threading.Thread(target=self._run, name="tms-member", daemon=True).start()

    def show(self, record: InstanceRecord) -> None:
        """Show this record to the others; as in `ClusterMember`."""
        self.record = record

    def leave(self) -> None:
        """Cease to be a member; as in `ClusterMember`."""
        self._left = True

    def _run(self) -> None:
        frames = Frames(self._connect())
        try:
            frames.send(self.record)
            while True:
                said = frames.receive(ViewMessage)
                view = MembershipView(said.number, tuple(sorted(said.instances, key=_id)))
                if view != self.view or self.state is not MembershipState.MEMBER:
                    self.view, self.state = view, MembershipState.MEMBER
                    self._changed()
                frames.send(self.record)
        except Unavailable as error:
            if not self._left:
                _log.error("worker_ends", error=error.message)
                os._exit(os.EX_UNAVAILABLE)  # nobody keeps the directory for it any more


def _id(record: InstanceRecord) -> str:
    return record.id
