"""Numbered blocks into the log, each exactly once: numbering, repeating, and beginning anew.

    append ──▶ acknowledged
       └─ failed, retriable ──▶ the same bytes again; a repetition is answered with the first ids
       └─ out of order ──▶ block by block; one that is still refused begins anew, with a new id

Why beginning anew cannot store a block twice: the service refuses a block out of order when it does
not know the block before it. That one was acknowledged or has just been appended here, so the
service has forgotten this producer, and it will refuse every copy of the block that is still on its
way for the same reason.

Invariants

* The blocks of a partition are numbered 0, 1, 2 … under one producer id; a number stands for one
  block's bytes.
* No two processes number under one id: one that was forked begins anew.
* Blocks are appended in the order given. When an error is raised, blocks after the one that failed
  are not sent.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from tms import forks
from tms.block import Compression, decode, encode
from tms.clock import Clock
from tms.errors import OutOfOrderSequence, TMSError
from tms.events import BoundedLog
from tms.model.message import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.retrying import is_retriable, retrying, retrying_async

SEQUENCE_LIMIT = 1 << 32
PLACES_MAX = 16_384
_log = BoundedLog(__name__)

Place = tuple[TopicName, int]
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
        self._next: dict[Place, tuple[int, int]] = {}

    def take(self, place: Place) -> tuple[int, int]:
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

    def renew(self, place: Place) -> None:
        """Begin anew at `place`, under a new producer id."""
        self._next[place] = (_new_producer_id(), 0)


def _new_producer_id() -> int:
    """63 random bits, not zero."""
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


class Delivery(NamedTuple):
    """How the blocks of one producer are appended to a topic: under these numbers, as durably as
    that (None: as the topic says), packed anew like that, within that time."""

    name: TopicName
    numbering: Numbering
    durability: Durability | None
    compression: Compression
    timeout_s: float


class Unacknowledged:
    """The blocks that no answer has acknowledged yet, and which of them the next request carries:
    all, or after a refusal the first one. Pure state."""

    def __init__(
        self, delivery: Delivery, blocks: Sequence[NewBlock], *, one_by_one: bool = False
    ) -> None:
        self.blocks = list(blocks)
        self.appended: list[Appended] = []
        self._delivery = delivery
        self._one_by_one = one_by_one
        self._renewed: set[int] = set()  # partitions that have begun anew

    def __str__(self) -> str:
        """What is requested, for the log."""
        return f"publish to {self._delivery.name}"

    def request(self, append: Append[Answer]) -> Callable[[float], Answer]:
        """The next request, as a call that takes its time-out."""
        name, _, durability, _, _ = self._delivery
        blocks = self.blocks[:1] if self._one_by_one else self.blocks
        return partial(append, name, blocks, durability)

    def acknowledge(self, appended: Sequence[Appended]) -> None:
        """The request has succeeded."""
        self.appended += appended
        self.blocks = self.blocks[1:] if self._one_by_one else []

    def refuse(self, error: OutOfOrderSequence) -> None:
        """The request was out of order: go on block by block; a single block, and the later ones
        of its partition, begin anew. Raises `error` when they have done so before."""
        if not self._one_by_one:
            self._one_by_one = True
            return
        partition = self.blocks[0].partition
        if partition in self._renewed:
            raise error
        self._renewed.add(partition)
        _log.warning(
            "producer_renewed",
            topic=str(self._delivery.name),
            partition=partition,
            error=error.message,
        )
        self._delivery.numbering.renew((self._delivery.name, partition))
        self.blocks = [
            self._renumbered(entry) if entry.partition == partition else entry
            for entry in self.blocks
        ]

    def _renumbered(self, entry: NewBlock) -> NewBlock:
        """The same messages, packed anew: an engine may hold on to the old bytes."""
        name, numbering, _, compression, _ = self._delivery
        columns = decode(entry.block)
        producer_id, sequence = numbering.take((name, entry.partition))
        block = encode(
            columns.values(),
            columns.keys(),
            columns.headers(),
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
                retrying(request, clock, left_s, _is_retriable_as_it_is, failed, what=left)
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
    """The same as `deliver`, for coroutines."""
    deadline_s, left_s = clock.monotonic_s() + timeout_s, max(0.001, timeout_s)
    while left.blocks:
        request = left.request(append)
        try:
            again = _is_retriable_as_it_is
            left.acknowledge(await retrying_async(request, clock, left_s, again, what=left))
        except OutOfOrderSequence as error:
            left.refuse(error)
        if left.blocks:
            left_s = max(0.001, deadline_s - clock.monotonic_s())
    return left.appended


def _is_retriable_as_it_is(error: BaseException) -> bool:
    """Retriable without the blocks before it."""
    return is_retriable(error) and not isinstance(error, OutOfOrderSequence)
