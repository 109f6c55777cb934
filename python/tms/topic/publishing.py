"""Publishing: checking what comes in, handing it to the partitions, bounding what is under way.

Invariants

* Every block of a request is checked completely, and room for all of them is reserved, before any
  of them is handed on: what is refused (`Overloaded` as well) was not stored by halves.
"""

from collections.abc import Sequence

from tms.errors import Closed, Invalid, TMSError
from tms.events import EventLog
from tms.log.groups import PLAIN, Stamp, Ticket
from tms.log.pending import PendingAppend
from tms.model.block import BlockHeader, check, read_header
from tms.model.log import Appended, Buffer, NewBlock
from tms.model.topic import Durability, TopicName
from tms.topic.partitions import PartitionLog, Partitions
from tms.topic.registry import Registry, TopicRecord

_log = EventLog(__name__)


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
        stamp: Stamp = PLAIN,
        internal: bool = False,
    ) -> PendingAppend:
        """Hand blocks to their partitions; the calling thread itself writes what needs at most
        `inline`. `stamp` is a transaction's; `internal` ones were made here and may go to the
        namespace `system`. See `Engine.submit`."""
        if self._closed:
            raise Closed("The engine is closed; nothing was stored.")
        if not internal:
            name.require_writable()
        topic = self._registry.find(name)
        if durability is None:
            durability = topic.durability
        if not blocks:
            raise Invalid("There is nothing to publish: give at least one block.")
        pending = PendingAppend(len(blocks))
        tickets: dict[PartitionLog, Ticket] = {}
        for number, (partition, block) in enumerate(blocks):
            log = self._partitions.get(name, topic, partition)
            header = read_header(block) if internal else self._checked(block, topic)
            ticket = tickets.get(log)
            if ticket is None:
                ticket = tickets[log] = Ticket(pending, durability, stamp)
            ticket.entries.append((number, block, header))
            ticket.bytes += len(block)
        if len(tickets) > 1:
            _reserve(tickets)
        strongest = None if durability is Durability.NONE else inline
        for log, ticket in tickets.items():
            log.writer.submit(ticket, strongest)
        if durability is Durability.NONE:
            return _acknowledged(pending, blocks, tickets)
        return pending

    def check(self, name: TopicName, blocks: Sequence[NewBlock]) -> list[BlockHeader]:
        """The headers of blocks that could be stored in a topic. Raises what is wrong with one."""
        topic = self._registry.find(name)
        for new in blocks:
            self._partitions.get(name, topic, new.partition)
        return [self._checked(new.block, topic) for new in blocks]

    def _checked(self, block: Buffer, topic: TopicRecord) -> BlockHeader:
        return check(
            block,
            message_bytes_max=topic.message_bytes_max,
            decompressed_bytes_max=self._block_bytes,
        )


def _reserve(tickets: dict[PartitionLog, Ticket]) -> None:
    """Make room in all partitions or in none. Raises `Overloaded`, `Closed`."""
    try:
        for log, ticket in tickets.items():
            log.writer.reserve(ticket)
    except TMSError:
        for log, ticket in tickets.items():
            log.writer.release(ticket)
        raise


def _acknowledged(
    pending: PendingAppend,
    blocks: Sequence[NewBlock],
    tickets: dict[PartitionLog, Ticket],
) -> PendingAppend:
    """The answer for durability `none`: given at once; what becomes of the blocks is only
    logged."""

    def report() -> None:
        try:
            pending.result(0)
        except TMSError as error:
            _log.error("unacknowledged_append_failed", error=error.message, blocks=len(blocks))

    answer = PendingAppend(len(blocks))
    for ticket in tickets.values():
        for index, _, header in ticket.entries:
            answer.settle(index, Appended(blocks[index].partition, -1, -1, header.count, -1))
    pending.add_done_callback(report)
    return answer
