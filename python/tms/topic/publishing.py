"""Publishing: checking what comes in, handing it to the partitions, bounding what is under way.

Invariants

* Every block of a request is checked completely, and room for all of them is reserved, before any
  of them is handed on: what is refused (`Overloaded` as well) was not stored by halves.
"""

from collections.abc import Sequence

import structlog

from tms.errors import Closed, Invalid, TMSError
from tms.log.pending import PendingAppend
from tms.log.writer import Entry, Ticket
from tms.model.block import check
from tms.model.log import Appended, NewBlock
from tms.model.topic import Durability, TopicName
from tms.topic.partitions import PartitionLog, Partitions
from tms.topic.registry import Registry, TopicRecord

Entries = dict[PartitionLog, tuple[list[Entry], int]]
_log = structlog.get_logger(__name__)


class Publisher:
    """The way in. Thread-safe."""

    def __init__(self, registry: Registry, partitions: Partitions, block_bytes: int) -> None:
        self._registry = registry
        self._partitions = partitions
        self._block_bytes = block_bytes
        self._closed = False

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
        entries = self._checked(name, topic, blocks)
        _reserve(entries)
        pending = PendingAppend(len(blocks))
        strongest = None if durability is Durability.NONE else inline
        for log, (its_entries, its_size) in entries.items():
            log.writer.submit(Ticket(pending, its_entries, its_size, durability), strongest)
        if durability is Durability.NONE:
            return _acknowledged(pending, blocks, entries)
        return pending

    def _checked(self, name: TopicName, topic: TopicRecord, blocks: Sequence[NewBlock]) -> Entries:
        if not blocks:
            raise Invalid("There is nothing to publish: give at least one block.")
        entries: Entries = {}
        for index, (partition, block) in enumerate(blocks):
            log = self._partitions.get(name, topic, partition)
            header = check(
                block,
                message_bytes_max=topic.message_bytes_max,
                decompressed_bytes_max=self._block_bytes,
            )
            size = len(block)
            its = entries.get(log)
            if its is None:
                entries[log] = ([Entry(index, block, header)], size)
            else:
                its[0].append(Entry(index, block, header))
                entries[log] = (its[0], its[1] + size)
        return entries


def _reserve(entries: Entries) -> None:
    """Make room in all partitions or in none. Raises `Overloaded`, `Closed`."""
    reserved: list[tuple[PartitionLog, int]] = []
    try:
        for log, (_, size) in entries.items():
            log.writer.reserve(size)
            reserved.append((log, size))
    except TMSError:
        for log, size in reserved:
            log.writer.release(size)
        raise


def _acknowledged(
    pending: PendingAppend,
    blocks: Sequence[NewBlock],
    entries: Entries,
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
