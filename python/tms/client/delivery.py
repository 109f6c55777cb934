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
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from tms import forks
from tms.block import Compression, decode, encode
from tms.client.transport import Transport
from tms.clock import Clock
from tms.errors import OutOfOrderSequence, TMSError
from tms.model.message import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.retrying import is_retriable, retrying

SEQUENCE_LIMIT = 1 << 32
PLACES_MAX = 16_384

Place = tuple[TopicName, int]


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


class Renewal:
    """What is left to append block by block, and which partitions have begun anew already. Pure
    state."""

    def __init__(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        numbering: Numbering,
        compression: Compression,
    ) -> None:
        self.left = list(blocks)
        self.name = name
        self._numbering = numbering
        self._compression = compression
        self._renewed: set[int] = set()

    def begin_anew(self, error: OutOfOrderSequence) -> None:
        """The first block left was refused: number it and its partition's later ones anew. Raises
        `error` when that was done before."""
        partition = self.left[0].partition
        if partition in self._renewed:
            raise error
        self._renewed.add(partition)
        self._numbering.renew((self.name, partition))
        self.left = [
            self._renumbered(entry) if entry.partition == partition else entry
            for entry in self.left
        ]

    def _renumbered(self, entry: NewBlock) -> NewBlock:
        """The same messages, packed anew: an engine may hold on to the old bytes."""
        columns = decode(entry.block)
        producer_id, sequence = self._numbering.take((self.name, entry.partition))
        block = encode(
            columns.values(),
            columns.keys(),
            columns.headers(),
            producer_id=producer_id,
            producer_sequence=sequence,
            compression=self._compression,
        )
        return structs.replace(entry, block=block)


class DeliveryOptions(NamedTuple):
    """How blocks are appended: as durably as that (None: as the topic says), packed anew like that,
    within that time."""

    durability: Durability | None
    compression: Compression
    timeout_s: float


class Delivery:
    """The way of one producer's blocks into one topic."""

    __slots__ = ("_clock", "_numbering", "_transport", "name", "options")

    def __init__(
        self,
        transport: Transport,
        name: TopicName,
        numbering: Numbering,
        options: DeliveryOptions,
        clock: Clock,
    ) -> None:
        self.name = name
        self.options = options
        self._transport = transport
        self._numbering = numbering
        self._clock = clock

    def append(self, blocks: Sequence[NewBlock], failed: TMSError | None = None) -> list[Appended]:
        """Append in one request, or block by block where that fails. `failed` is the error of a
        first attempt that was made already. Raises the last attempt's error."""
        try:
            return self._repeat(blocks, self.options.timeout_s, failed)
        except OutOfOrderSequence:
            return self.repeat(blocks, self.options.timeout_s)

    def repeat(self, blocks: Sequence[NewBlock], timeout_s: float) -> list[Appended]:
        """Append what an earlier attempt may have stored, block by block."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        work = Renewal(self.name, blocks, self._numbering, self.options.compression)
        appended: list[Appended] = []
        while work.left:
            try:
                appended += self._repeat(work.left[:1], deadline_s - self._clock.monotonic_s())
            except OutOfOrderSequence as error:
                work.begin_anew(error)
            else:
                work.left.pop(0)
        return appended

    def _repeat(
        self, blocks: Sequence[NewBlock], timeout_s: float, failed: TMSError | None = None
    ) -> list[Appended]:
        append, name, durability = self._transport.append, self.name, self.options.durability
        return retrying(
            lambda left_s: append(name, blocks, durability, left_s),
            self._clock,
            max(0.001, timeout_s),
            is_retriable_as_it_is,
            failed,
        )


def is_retriable_as_it_is(error: BaseException) -> bool:
    """Retriable without the blocks before it."""
    return is_retriable(error) and not isinstance(error, OutOfOrderSequence)
