"""Numbered blocks into the log, each exactly once: numbering, repeating, and beginning anew.

    append ──▶ acknowledged
       └─ failed, retriable ──▶ the same bytes again; a repetition is answered with the first ids
       └─ out of order ──▶ block by block; one that is still refused
             └─ was only ever refused ──▶ begins anew, with a new id
             └─ is in doubt ──▶ `OutcomeUnknown`

The service refuses a block out of order when it does not know the block before it. That one was
acknowledged or has just been appended here, so the service has forgotten this producer. A block is
in doubt if an attempt to append it has failed otherwise: it may be stored, and nothing remembers
it. If no attempt has, beginning anew cannot store it twice: the service will refuse every copy that
is still on its way for the same reason. Where the service knows the producer and names an earlier
block as the next one, a block in doubt is not stored either: the power took those before it.

Invariants

* The blocks of a partition are numbered 0, 1, 2 … under one producer id; a number stands for one
  block's bytes.
* No two processes number under one id: one that was forked begins anew.
* Blocks are appended in the order given. When an error is raised, blocks after the one that failed
  are not sent.
* A block in doubt is repeated for `REPEATED_S` at most, less than for how long the service
  remembers its producer: the first block of one that is forgotten looks like one of a new producer.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from tms.block import Compression, decode, encode, read_header
from tms.errors import OutcomeUnknown, OutOfOrderSequence, Overloaded, TMSError
from tms.model.message import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.events import BoundedLog
from tms.runtime.retrying import is_retriable, retrying, retrying_async

SEQUENCE_LIMIT = 1 << 32
PLACES_MAX = 16_384
REPEATED_S = 600.0
_REFUSALS = (OutOfOrderSequence, Overloaded)  # after which nothing of a block is stored
_log = BoundedLog(__name__)

TopicPartition = tuple[TopicName, int]
Answer = TypeVar("Answer")
Append = Callable[[TopicName, Sequence[NewBlock], Durability | None, float], Answer]


class Numbering:
    """The numbers of one producer's blocks, counted for each partition by itself."""

    __slots__ = ("_generation", "_id", "_next")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._generation = forks.generation
        self._id = _new_producer_id()
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def take(self, place: TopicPartition) -> tuple[int, int]:
        """Producer id and sequence of the next block."""
        if self._generation != forks.generation:
            self._begin()
        number = self._next.get(place)
        if number is None:
            if len(self._next) == PLACES_MAX:
                self._begin()
            number = (self._id, 0)
        elif number[1] == SEQUENCE_LIMIT:
            number = (_new_producer_id(), 0)
        self._next[place] = (number[0], number[1] + 1)
        return number

    def renew(self, place: TopicPartition) -> None:
        """Begin anew at `place`, under a new producer id."""
        self._next[place] = (_new_producer_id(), 0)


def _new_producer_id() -> int:
    """63 random bits, not zero."""
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


class Delivery(NamedTuple):
    """The delivery of one producer's blocks to a topic: their numbers, durability (None: that of
    the topic), compression when they are packed anew, and time-out."""

    name: TopicName
    numbering: Numbering
    durability: Durability | None
    compression: Compression
    timeout_s: float


def is_in_doubt(error: BaseException) -> bool:
    """True if blocks whose request failed with this error may be stored."""
    return not isinstance(error, _REFUSALS)


class Unacknowledged:
    """The blocks that no answer has acknowledged yet, and which of them the next request carries:
    all, or after a refusal the first one. Pure state.

    `doubtful` says of each whether it is in doubt already, since `since_s` of the monotonic clock.
    """

    def __init__(
        self,
        delivery: Delivery,
        blocks: Sequence[NewBlock],
        *,
        one_by_one: bool = False,
        doubtful: Sequence[bool] = (),
        since_s: float | None = None,
    ) -> None:
        self.blocks = list(blocks)
        self.appended: list[Appended] = []
        self._delivery = delivery
        self._one_by_one = one_by_one
        self._doubtful = list(doubtful) or [False] * len(self.blocks)
        self._since_s = since_s
        self._renewed: set[int] = set()  # partitions that have begun anew

    def __str__(self) -> str:
        """The request, as the log names it."""
        return f"publish to {self._delivery.name}"

    def request(self, append: Append[Answer]) -> Callable[[float], Answer]:
        """The next request, as a call that takes its time-out."""
        name, _, durability, _, _ = self._delivery
        blocks = self.blocks[:1] if self._one_by_one else self.blocks
        return partial(append, name, blocks, durability)

    def count(self) -> int:
        """The number of messages of the blocks."""
        return sum(read_header(entry.block).count for entry in self.blocks)

    def acknowledge(self, appended: Sequence[Appended]) -> None:
        """The request has succeeded."""
        self.appended += appended
        done = 1 if self._one_by_one else len(self.blocks)
        del self.blocks[:done], self._doubtful[:done]

    def may_repeat(self, clock: Clock, error: BaseException) -> bool:
        """Take note of the error of an attempt. True if the request can be made again as it is.
        Raises `OutcomeUnknown` when it has been repeated for too long."""
        now_s = clock.monotonic_s()
        if is_in_doubt(error):
            sent = 1 if self._one_by_one else len(self.blocks)
            self._doubtful[:sent] = [True] * sent
            self._since_s = now_s if self._since_s is None else self._since_s
        over = self._since_s is not None and now_s >= self._since_s + REPEATED_S
        if over and any(self._doubtful):
            raise self._unknown(f"no attempt of {REPEATED_S:g} s was answered") from error
        return is_retriable(error) and not isinstance(error, OutOfOrderSequence)

    def refuse(self, error: OutOfOrderSequence) -> None:
        """The request was out of order: go on block by block; a single block, and the later ones
        of its partition, begin anew. Raises `error` when they have done so before, and
        `OutcomeUnknown` if the block is in doubt."""
        if not self._one_by_one:
            self._one_by_one = True
            return
        partition = self.blocks[0].partition
        if partition in self._renewed:
            raise error
        if self._doubtful[0] and not error.details.get("expected"):
            raise self._unknown("an answer was lost, and the service has forgotten the producer")
        self._renewed.add(partition)
        _log.warning(
            "producer_renewed",
            topic=str(self._delivery.name),
            partition=partition,
            error=error.message,
        )
        self._delivery.numbering.renew((self._delivery.name, partition))
        for number, entry in enumerate(self.blocks):
            if entry.partition == partition:  # a later one is not stored without this one
                self.blocks[number], self._doubtful[number] = self._renumbered(entry), False

    def _unknown(self, why: str) -> OutcomeUnknown:
        """The error for the first block in doubt, and those of its partition that are, too."""
        partition = self.blocks[self._doubtful.index(True)].partition
        messages = sum(
            read_header(entry.block).count
            for entry, doubtful in zip(self.blocks, self._doubtful, strict=True)
            if doubtful and entry.partition == partition
        )
        name = self._delivery.name
        return OutcomeUnknown(
            f"{messages} messages for {name}, partition {partition}, may be stored or not: {why}. "
            "Read the partition to see, or publish them again if twice does no harm.",
            topic=str(name),
            partition=partition,
            messages=messages,
        )

    def _renumbered(self, entry: NewBlock) -> NewBlock:
        """A block with its messages packed anew: an engine may hold on to the old bytes."""
        name, numbering, _, compression, _ = self._delivery
        columns = decode(entry.block)
        producer_id, sequence = numbering.take((name, entry.partition))
        block = encode(
            columns.values(),
            columns.keys(),
            columns.headers(),
            columns.event_times(),
            producer_id=producer_id,
            producer_sequence=sequence,
            compression=compression,
        )
        return structs.replace(entry, block=block)


def deliver(
    append: Append[list[Appended]],
    left: Unacknowledged,
    clock: Clock,
    timeout_s: float,
    failed: TMSError | None = None,
) -> list[Appended]:
    """Append what is left, request by request. `failed` is the error of a first attempt that was
    made already. Raises the last attempt's error."""
    deadline_s, left_s = clock.monotonic_s() + timeout_s, max(0.001, timeout_s)
    while left.blocks:
        request = left.request(append)
        try:
            left.acknowledge(
                retrying(request, clock, left_s, partial(left.may_repeat, clock), failed, what=left)
            )
        except OutOfOrderSequence as error:
            left.refuse(error)
        failed = None
        if left.blocks:
            left_s = max(0.001, deadline_s - clock.monotonic_s())
    return left.appended


async def deliver_async(
    append: Append[Awaitable[list[Appended]]],
    left: Unacknowledged,
    clock: Clock,
    timeout_s: float,
) -> list[Appended]:
    """`deliver` for coroutines."""
    deadline_s, left_s = clock.monotonic_s() + timeout_s, max(0.001, timeout_s)
    while left.blocks:
        request = left.request(append)
        try:
            again = partial(left.may_repeat, clock)
            left.acknowledge(await retrying_async(request, clock, left_s, again, what=left))
        except OutOfOrderSequence as error:
            left.refuse(error)
        if left.blocks:
            left_s = max(0.001, deadline_s - clock.monotonic_s())
    return left.appended
