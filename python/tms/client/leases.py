"""Leases of messages that are being handled, extended until they are done with.

    keep ─▶ extended, before a third of the lease is over, again and again ─▶ release
                └─ refused: it was delivered again, or settled ─▶ lost: its handler is told

Invariants

* A thread of its own extends, so that neither a slow handler nor a busy event loop lets a lease
  end. It stops by itself when nothing is kept.
* What is acknowledged or given back is not extended from then on, and waits for an extension that
  is under way: one that came later would lease again what was given back.
* An extension that fails is tried again; only the service says that a lease is lost.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tms.block.received import Delivered
from tms.errors import TMSError
from tms.model.queue import Token, TokenResult, join_tokens
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.events import BoundedLog

AHEAD_MAX = 16  # messages that are leased ahead of their handler
AHEAD_S = 1.0  # of work that is leased ahead, and less than a quarter of a lease
_LOOK_S_MIN, _LOOK_S_MAX = 0.01, 5.0
_log = BoundedLog(__name__)


class Pace:
    """The number of messages that a handler may lease at once, by how long it took for the last
    ones. Begins with one; where a second delivery is the end of a message, none is leased before
    its turn."""

    def __init__(self, lease_s: float, deliveries_max: int) -> None:
        self._room_s = min(AHEAD_S, lease_s / 4)
        self._limit_max = 1 if deliveries_max == 1 else AHEAD_MAX
        self._mean_s: float | None = None
        self.limit = 1

    def took(self, seconds: float) -> None:
        """A message took so long."""
        self._mean_s = seconds if self._mean_s is None else (self._mean_s + seconds) / 2
        fitting = int(self._room_s / max(self._mean_s, 1e-9))
        self.limit = max(1, min(self._limit_max, 2 * self.limit, fitting))


class HeldMessage:
    """A message that is being handled. `settled`: by its handler, or handed to a transaction;
    `lost`: its lease could not be extended, for somebody else has it, or has settled it."""

    __slots__ = ("done", "extended_s", "lost", "settled", "token", "users")

    def __init__(self, token: Token, now_s: float) -> None:
        self.token = token
        self.extended_s = now_s
        self.users = 0
        self.settled = False
        self.done = False  # then nothing is to be extended
        self.lost = False


class Leases:
    """The leases that are kept for one queue, which the log calls `name`. Thread-safe; nothing here
    waits but `settling`, `extend` and the thread."""

    def __init__(
        self,
        extend: Callable[[list[str]], TokenResult],
        lease_s: Callable[[], float],
        clock: Clock,
        name: str,
    ) -> None:
        self._name = name
        self._extend = extend
        self._lease_s = lease_s
        self._clock = clock
        self._begin()
        forks.in_child(self._forked)

    def _begin(self) -> None:
        self._lock = threading.Lock()  # guards `kept` and `_thread`
        self._calling = threading.Lock()  # held while leases are extended
        self.kept: dict[Token, HeldMessage] = {}  # that are being handled
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        for kept in self.kept.values():  # these were leased to the parent, which settles them
            kept.lost = kept.settled = kept.done = True
        self._begin()

    # -- what is kept ------------------------------------------------------------------------------

    def keep(self, messages: Iterable[Delivered[Any]]) -> list[HeldMessage]:
        """Extend the leases of these, which have just been received, each until `release`."""
        now_s = self._clock.monotonic_s()
        tokens = [Token.parse(message.token) for message in messages]
        with self._lock:
            found = [self.kept.setdefault(token, HeldMessage(token, now_s)) for token in tokens]
            for kept in found:
                kept.users += 1
            if found and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="tms-leases", daemon=True)
                self._thread.start()
        return found

    def release(self, kept: HeldMessage) -> None:
        """It is not handled any more."""
        with self._lock:
            kept.users -= 1
            if not kept.users and self.kept.get(kept.token) is kept:
                del self.kept[kept.token]

    def hand_over(self, tokens: Sequence[str]) -> None:
        """A transaction settles these: the leases are to last until it commits, and its commit says
        if one is lost."""
        for kept in self._of(tokens):
            kept.settled = True

    @contextmanager
    def settling(self, tokens: Sequence[str]) -> Iterator[None]:
        """While these are acknowledged or given back; once they are, they are not extended."""
        found = self._of(tokens)
        if not found:
            yield
            return
        with self._calling:
            settled = [kept.settled for kept in found]
            for kept in found:
                kept.settled = True
            try:
                yield
            except BaseException:
                for kept, before in zip(found, settled, strict=True):
                    kept.settled = before
                raise
            for kept in found:
                kept.done = True

    def _of(self, tokens: Sequence[str]) -> list[HeldMessage]:
        """The held messages of these tokens."""
        if not self.kept:
            return []
        named = [Token.parse(token) for token in tokens]
        with self._lock:
            return [
                kept
                for kept in self.kept.values()
                if any(
                    one.offset <= kept.token.offset < one.offset + one.count
                    and one.partition == kept.token.partition
                    and one.deliveries == kept.token.deliveries
                    and one.epoch == kept.token.epoch
                    for one in named
                )
            ]

    # -- extending ---------------------------------------------------------------------------------

    def extend(self) -> None:
        """Extend what is due. Raises what keeps the service from answering."""
        with self._calling:
            now_s = self._clock.monotonic_s()
            due_s = now_s - self._lease_s() / 3
            with self._lock:
                due = {
                    token: kept
                    for token, kept in self.kept.items()
                    if not (kept.lost or kept.done) and kept.extended_s <= due_s
                }
            if not due:
                return
            result = self._extend([str(token) for token in join_tokens(due)])
            fenced = {one for text in result.fenced for one in Token.parse(text).each()}
            for token, kept in due.items():
                kept.lost = token in fenced
                kept.extended_s = now_s
            lost = [token for token, kept in due.items() if kept.lost and not kept.settled]
            if lost:
                self._tell_lost(lost)

    def _tell_lost(self, lost: Sequence[Token]) -> None:
        first = min(lost)
        _log.warning(
            "lease_lost",
            queue=self._name,
            messages=len(lost),
            partition=first.partition,
            offset=first.offset,
            deliveries=first.deliveries,
        )

    def _run(self) -> None:
        wait = threading.Event().wait
        while True:
            wait(min(_LOOK_S_MAX, max(_LOOK_S_MIN, self._lease_s() / 6)))
            with self._lock:
                if not self.kept:
                    self._thread = None
                    return
            with suppress(TMSError):  # while a lease lasts, there is time to try again
                self.extend()
