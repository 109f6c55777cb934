"""Publishing: checking what comes in, handing it to the partitions, bounding what is under way.

Invariants

* Every block of a request is checked completely before any of them is handed on.
* The bytes of all requests that have no answer yet are bounded; beyond it `Overloaded` is raised.
"""

import threading
from collections.abc import Sequence

import structlog

from tms.errors import Closed, Invalid, Overloaded, TMSError
from tms.log.pending import PendingAppend
from tms.log.writer import Entry, Ticket
from tms.model.block import check
from tms.model.log import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.topic.partitions import PartitionLog, Partitions
from tms.topic.registry import Registry, TopicRecord

_log = structlog.get_logger(__name__)


class Publisher:
    """The way in. Thread-safe."""

    def __init__(
        self, registry: Registry, partitions: Partitions, in_flight_bytes_max: int, block_bytes: int
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._in_flight_bytes_max = in_flight_bytes_max
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._closed = False
        self.in_flight_bytes = 0

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        inline: Durability,
    ) -> PendingAppend:
        """Hand blocks to their partitions; the calling thread itself writes what needs at most
        `inline`. See `Engine.submit`."""
        if self._closed:
            raise Closed("The engine is closed; nothing was stored.")
        name.require_writable()
        topic = self._registry.find(name)
        if durability is None:
            durability = topic.durability
        entries, size = self._checked(name, topic, blocks)
        pending = PendingAppend(len(blocks))
        self._admit(size)
        strongest = None if durability is Durability.NONE else inline
        logs = list(entries.items())
        for done, (log, (its_entries, its_size)) in enumerate(logs):
            try:
                log.writer.submit(Ticket(pending, its_entries, its_size, durability), strongest)
            except TMSError as error:
                left = sum(len(rest[0]) for _, rest in logs[done:])
                pending.fail(left, error)
                break
        if not pending.done():
            self._count(pending, size)
        if durability is Durability.NONE and not pending.done():
            return _acknowledged(pending, blocks, entries)
        return pending

    def _checked(
        self, name: TopicName, topic: TopicRecord, blocks: Sequence[NewBlock]
    ) -> tuple[dict[PartitionLog, tuple[list[Entry], int]], int]:
        if not blocks:
            raise Invalid("There is nothing to publish: give at least one block.")
        entries: dict[PartitionLog, tuple[list[Entry], int]] = {}
        total = 0
        for index, (partition, block) in enumerate(blocks):
            log = self._partitions.get(name, topic, partition)
            header = check(
                block,
                message_bytes_max=topic.message_bytes_max,
                decompressed_bytes_max=self._block_bytes,
            )
            size = len(block)
            total += size
            its = entries.get(log)
            if its is None:
                entries[log] = ([Entry(index, block, header)], size)
            else:
                its[0].append(Entry(index, block, header))
                entries[log] = (its[0], its[1] + size)
        return entries, total

    def _admit(self, size: int) -> None:
        if self.in_flight_bytes and self.in_flight_bytes + size > self._in_flight_bytes_max:
            raise Overloaded(
                f"{self.in_flight_bytes} bytes are waiting to be written, the bound of this "
                "engine. Try again later.",
                retry_after_s=0.1,
            )

    def _count(self, pending: PendingAppend, size: int) -> None:
        """Only what was not written at once takes part in the bound."""
        with self._lock:
            self.in_flight_bytes += size

        def landed() -> None:
            with self._lock:
                self.in_flight_bytes -= size

        pending.add_done_callback(landed)


def _acknowledged(
    pending: PendingAppend,
    blocks: Sequence[NewBlock],
    entries: dict[PartitionLog, tuple[list[Entry], int]],
) -> PendingAppend:
    """The answer for durability `none`: given at once; what becomes of the blocks is only
    logged."""

    def report() -> None:
        try:
            pending.result(0)
        except TMSError as error:
            _log.error("unacknowledged_append_failed", error=error.message, blocks=len(blocks))

    answer = PendingAppend(len(blocks))
    for its_entries, _ in entries.values():
        for index, _, header in its_entries:
            answer.settle(index, Appended(blocks[index].partition, -1, -1, header.count, -1))
    pending.add_done_callback(report)
    return answer
