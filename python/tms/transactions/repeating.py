"""Blocks of a transaction that are stored once, although the owner of their partition goes
meanwhile.

Invariants

* An append whose outcome is unknown, or that the owner refused, is repeated until another owner has
  answered: the partition stores a block of a producer once, whoever owns it.
* It ends after `REPEAT_S`. Only then has it failed, and its transaction with it.
"""

import threading
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tms.errors import StorageUnavailable, TimedOut, TMSError, Unavailable
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock
from tms.runtime.clock import Clock

REPEAT_S = 25.0  # from the first attempt on
AGAIN_S = 0.2  # between two attempts
_PASSING = (Unavailable, TimedOut, StorageUnavailable)


class RepeatedAppend:
    """The blocks of a producer on their way to whoever owns their partition. `submit` makes an
    attempt, by which the blocks may be changed."""

    def __init__(
        self,
        clock: Clock,
        blocks: Sequence[NewBlock],
        submit: Callable[[Sequence[NewBlock]], PendingAppend],
    ) -> None:
        self._clock = clock
        self._blocks = blocks
        self._submit = submit
        self._until_s = clock.monotonic_s() + REPEAT_S
        self._outcome = PendingAppend(len(blocks))

    def begin(self) -> PendingAppend:
        """Make the first attempt; returns the outcome of all. Raises the error of an attempt that
        stores nothing."""
        self._follow(self._attempt())
        return self._outcome

    def _attempt(self) -> PendingAppend:
        return self._submit([replace(new, block=bytearray(new.block)) for new in self._blocks])

    def _follow(self, attempt: PendingAppend) -> None:
        attempt.add_done_callback(lambda: self._done(attempt))

    def _done(self, attempt: PendingAppend) -> None:
        try:
            places = attempt.result(0)
        except TMSError as error:
            self._failed(error)
            return
        for number, place in enumerate(places):
            self._outcome.settle(number, place)

    def _failed(self, error: TMSError) -> None:
        if isinstance(error, _PASSING) and self._clock.monotonic_s() < self._until_s:
            timer = threading.Timer(AGAIN_S, self._again)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # the process ends, or has too many threads
                pass
            else:
                return
        self._outcome.fail(len(self._blocks), error)

    def _again(self) -> None:
        try:
            attempt = self._attempt()
        except TMSError as error:
            self._failed(error)
        else:
            self._follow(attempt)
