"""The outcome of a message that a producer has accepted.

A block has one receipt, which its messages share: each outcome is a place in it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

from tms.errors import Closed, TMSError, again
from tms.model.ids import MessageId
from tms.model.message import Appended


class Receipt:
    """The outcome of a block: the place to which it was appended, or the error for which it never
    will be; neither while that is open."""

    appended: Appended | None = None
    error: TMSError | None = None

    def __repr__(self) -> str:
        return f"Receipt({self.error or self.appended or 'open'})"

    @property
    def is_settled(self) -> bool:
        """True if the outcome is known."""
        return self.appended is not None or self.error is not None

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Within, the producer is flushed for this outcome: an error of the flush counts only if
        the outcome stays open."""
        try:
            yield
        except TMSError:
            if not self.is_settled:
                raise

    def id(self, number: int) -> MessageId | None:
        """The id of a message of the block, None with durability `none`. Raises the error of the
        block, or `Closed` if its producer belongs to another process."""
        if self.error is not None:
            raise again(self.error)
        if self.appended is None:
            raise Closed("The message belongs to a producer of another process.")
        place = self.appended
        return None if place.time_ms < 0 else MessageId(place.time_ms, place.sequence + number)


class SentCells(NamedTuple):
    """A message that a producer has accepted: the producer, the receipt of the message's block, and
    the number of the message within it."""

    producer: ref[Any]
    receipt: Receipt
    number: int

    def done(self) -> bool:
        """True if the message was acknowledged or has failed. Never waits."""
        return self.receipt.is_settled


def settle(receipts: Iterable[Receipt], appended: Iterable[Appended]) -> None:
    """Blocks were appended, in this order."""
    for receipt, place in zip(receipts, appended, strict=False):
        receipt.appended = place


def refuse(receipts: Iterable[Receipt], error: TMSError) -> None:
    """The blocks among these whose outcome is open never will be acknowledged."""
    for receipt in receipts:
        if receipt.appended is None:
            receipt.error = error
