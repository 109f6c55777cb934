"""The messages that a producer has accepted and no answer has acknowledged: one state for threads
and asyncio.

    add ──▶ batcher ──▶ pack ──▶ requests under way ──▶ acknowledged
                                      └─ one failed ──▶ all that is left is repeated
                                            └─ in vain ──▶ kept, and repeated again
                                            └─ of no use ──▶ given up

`Producer` and `AsyncProducer` drive it: they decide when to push, and wait. Nothing here does I/O.

Invariants

* Every accepted message is acknowledged, or an error says that it was not: at the next send, flush
  or close.
* An error that may end by itself ends nothing: what is not acknowledged is kept, and every later
  call goes on with it. Until it is through, nothing more is accepted.
* At most `in_flight_max` requests are under way and one is being filled; beyond that `send` waits.
* A request that failed is repeated block by block, in order, byte for byte; nothing else is sent
  meanwhile.
* What was accepted before a fork is sent by the parent alone: in the child the producer is as new.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, NamedTuple, Self, TypeVar

from tms.block import read_header
from tms.client.batching import REQUEST_BYTES, Batcher, KnownTopic
from tms.client.delivery import Delivery, Unacknowledged, is_in_doubt
from tms.client.receipts import Receipt, refuse, settle
from tms.client.topic_cache import TopicCache
from tms.errors import Closed, OutcomeUnknown, TMSError
from tms.model.message import Appended, NewBlock
from tms.model.quantity import Duration, milliseconds, whole
from tms.model.serializer import Serializer, V
from tms.model.topic import TopicName
from tms.runtime.events import EventLog
from tms.runtime.retrying import is_retriable, log_retried

BATCH_BYTES = 512 << 10
IN_FLIGHT_MAX = 8
LINGER_MS_MAX = 60_000
STALLED_S = 1.0  # before what did not get through is repeated, if no call does that
IN_FLIGHT_LIMIT = 8  # so many blocks of a producer the service remembers

Pending = TypeVar("Pending")
_log = EventLog(__name__)


class SendPace(NamedTuple):
    """The pace of a producer: how long a message waits for others, and how many requests may be
    under way."""

    linger_s: float
    in_flight_max: int


class ProducerPlan(NamedTuple):
    """A producer that is to be made: how it delivers, paces and sizes its blocks."""

    delivery: Delivery
    pace: SendPace
    batch_bytes: int

    @classmethod
    def of(
        cls, delivery: Delivery, linger_ms: Duration, batch_bytes: int, in_flight_max: int
    ) -> Self:
        """A checked plan. Raises `Invalid`."""
        whole("batch_bytes", batch_bytes, 1, REQUEST_BYTES)
        whole("in_flight_max", in_flight_max, 1, IN_FLIGHT_LIMIT)
        linger_s = milliseconds("linger_ms", linger_ms, 0, LINGER_MS_MAX) / 1_000
        return cls(delivery, SendPace(linger_s, in_flight_max), batch_bytes)

    def batcher(
        self, topics: TopicCache, known: KnownTopic, serializer: Serializer[V] | None
    ) -> Batcher[V]:
        """The batcher of the producer."""
        return topics.batcher(
            known,
            self.delivery.numbering,
            batch_bytes=self.batch_bytes,
            compression=self.delivery.compression,
            serializer=serializer,
        )


class Flight(NamedTuple, Generic[Pending]):
    """A request under way; without an answer at `due_s` it is repeated."""

    pending: Pending
    blocks: list[NewBlock]
    receipts: list[Receipt]
    due_s: float = inf


class Sending(Generic[Pending]):
    """The state of a producer. Not thread-safe."""

    def __init__(self, delivery: Delivery, pace: SendPace, batcher: Batcher[Any] | None) -> None:
        self.delivery = delivery
        self.pace = pace
        self.batcher = batcher  # None until the topic is looked up
        self.closed = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child: nothing was accepted here."""
        if self.batcher is not None:
            self.batcher.drop()
        self.flights: deque[Flight[Pending]] = deque()
        self.left: Unacknowledged | None = None  # of requests that failed
        self.left_receipts: list[Receipt] = []  # of all blocks of `left`, also acknowledged ones
        self.stalled: TMSError | None = None  # why what is accepted does not get through
        self.failure: TMSError | None = None
        self.told = False  # whether the caller has met the failure
        self.ended = self.closed  # nothing is accepted any more

    def describe(self, producer: object) -> str:
        """The producer, as `repr` shows it."""
        state = " closed" if self.closed else f", {len(self.flights)} requests under way"
        return f"<{type(producer).__name__} to {self.delivery.name}{state}>"

    def check(self) -> None:
        """Raises the failure, or `Closed`, when nothing is accepted any more."""
        if self.failure is not None and not (self.closed and self.told):
            self.told = True
            raise self.failure
        if self.closed:
            raise Closed("The producer is closed; make a new one.")

    def require_retriable(self, error: TMSError) -> None:
        """A request failed. Raises `error` if there is no use in repeating it."""
        if not is_retriable(error):
            raise error
        log_retried(f"publish to {self.delivery.name}", error, 1, 0.0)

    def repeat(
        self, failed: Sequence[tuple[Flight[Pending], TMSError]], now_s: float
    ) -> Unacknowledged:
        """Of all requests under way these have failed: their blocks are left."""
        blocks = [entry for flight, _ in failed for entry in flight.blocks]
        doubtful = [is_in_doubt(error) for flight, error in failed for _ in flight.blocks]
        self.left = Unacknowledged(
            self.delivery, blocks, one_by_one=True, doubtful=doubtful, since_s=now_s
        )
        self.left_receipts = [receipt for flight, _ in failed for receipt in flight.receipts]
        self.flights.clear()
        return self.left

    def launch(self, begin: Callable[[Sequence[NewBlock]], Pending], due_s: float = inf) -> None:
        """Pack the messages that wait, and `begin` their request. Raises what packing raises."""
        assert self.batcher is not None, "messages are accepted once the topic is looked up"
        receipts = self.batcher.receipts()
        blocks = self.batcher.pack()
        self.batcher.next_partition()
        self.flights.append(Flight(begin(blocks), blocks, receipts, due_s))

    def landed(self, appended: Sequence[Appended]) -> None:
        """The oldest request has succeeded."""
        settle(self.flights.popleft().receipts, appended)

    def recovered(self, appended: Sequence[Appended]) -> None:
        """The blocks that were left are acknowledged."""
        settle(self.left_receipts, appended)
        self.left = self.stalled = None
        self.left_receipts = []

    def stall(self, error: TMSError) -> None:
        """The accepted messages do not get through for now; `error` gets their number."""
        error.details["unacknowledged"] = self.unacknowledged()
        self.stalled = error

    def raise_unless_kept(self, error: TMSError, refused: bool = False, accepted: int = 0) -> None:
        """After a call has accepted messages: raise `error`, unless it only says that these and
        others before them are late. The next call goes on with all. If some were `refused`, it
        raises with the number of those that were accepted."""
        if error is self.stalled:
            if not refused:
                return
            error.details["accepted"] = accepted
        raise error

    def unacknowledged(self) -> int:
        """The number of messages that are accepted and not acknowledged."""
        waiting = 0 if self.batcher is None else self.batcher.count
        left = 0 if self.left is None else self.left.count()
        flying = (entry for flight in self.flights for entry in flight.blocks)
        return waiting + left + sum(read_header(entry.block).count for entry in flying)

    def lost(self) -> int:
        """The number of unacknowledged messages that no error has reported to the caller."""
        if self.failure is None:
            return self.unacknowledged()
        return 0 if self.told else int(self.failure.details.get("unacknowledged", 0))

    def close(self) -> None:
        """Accept nothing any more."""
        self.closed = self.ended = True

    @contextmanager
    def closing(self) -> Iterator[bool]:
        """Within, the producer is closed, and flushed if this is True. An error of the flush gives
        up all messages that are not acknowledged."""
        try:
            yield not self.closed and (self.failure is None or not self.told)
        except TMSError as error:
            if self.failure is None:
                self.give_up(error)
                self.told = True
            raise
        finally:
            self.close()

    def give_up(self, error: TMSError) -> None:
        """Give up all messages that are not acknowledged, because of an error."""
        error.details["unacknowledged"] = self.unacknowledged()
        waiting = [] if self.batcher is None else self.batcher.receipts()
        if self.left is not None:
            settle(self.left_receipts, self.left.appended)
        flying = (receipt for flight in self.flights for receipt in flight.receipts)
        refuse((*self.left_receipts, *flying, *waiting), error)
        self.failure, self.ended = error, True
        self.left = self.stalled = None
        self.left_receipts = []
        self.flights.clear()


@contextmanager
def closing_after(error: BaseException | None) -> Iterator[None]:
    """Within, a producer is closed. If its block has raised, an error of closing is a note."""
    try:
        yield
    except TMSError as second:
        if error is None:
            raise
        error.add_note(f"The producer could not be closed cleanly: {second}")


def dropped(sending: Sending[Any], release: Callable[[], None] | None = None) -> None:
    """A producer was dropped without `close`. `release` closes its channel; an asyncio channel is
    closed by its event loop."""
    name = sending.delivery.name
    lost = sending.lost()
    if sending.failure is None:
        text = "The producer was dropped before the message was acknowledged; close producers."
        sending.give_up(OutcomeUnknown(text, topic=str(name)))
    sending.close()
    if release is not None:
        release()
    if lost:
        tell_lost(name, lost)
    else:
        warnings.warn(f"A producer to {name} was not closed.", ResourceWarning, stacklevel=2)


def tell_lost(name: TopicName, messages: int) -> None:
    """Warn that a producer was not closed and that this many of its messages may be lost."""
    _log.warning("producer_not_closed", topic=str(name), messages=messages)
    warnings.warn(
        f"A producer to {name} was not closed: {messages} messages may not be stored. Close it, or "
        "use it as a context manager.",
        ResourceWarning,
        stacklevel=2,
    )
