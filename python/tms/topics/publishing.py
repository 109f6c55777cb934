"""Publishing: checks blocks, hands them to their partitions, and bounds the bytes under way.

Invariants

* Every block of a request is checked completely, and room for all of them is reserved, before any
  of them is handed on: a refused request (with `Overloaded` as well) is not stored in part. This
  does not hold for room with other owners.
* A block is checked once: other owners take the blocks of this process as checked.
"""

from collections.abc import Sequence

from tms.block import BlockHeader, Flags, check, decode, flags_of, read_header
from tms.errors import Invalid, StorageUnavailable, TMSError, again
from tms.log.counting import require_appends
from tms.log.groups import PLAIN, Stamp, Ticket
from tms.log.partition_log import PartitionLog
from tms.log.pending import PendingAppend
from tms.log.preconditions import Precondition
from tms.log.records import key_after
from tms.model.message import NOTHING, Appended, Buffer, NewBlock
from tms.model.position import Position
from tms.model.topic import SYSTEM_NAMESPACE, Durability, TopicName
from tms.runtime.events import EventLog
from tms.topics.decisions import DecisionSource
from tms.topics.owners import Peer, split
from tms.topics.partitions import Partitions
from tms.topics.registry import TopicRecord
from tms.topics.retention import RetentionClock

LOOK_BYTES = 4 << 20
_log = EventLog(__name__)


class Publisher:
    """Publishes to all topics. Thread-safe."""

    def __init__(
        self,
        partitions: Partitions,
        retention: RetentionClock,
        block_bytes: int,
        source: DecisionSource,
    ) -> None:
        self._source = source
        self._registry = partitions.registry
        self._partitions = partitions
        self._retention = retention
        self.block_bytes = block_bytes
        self._owners = partitions.owners
        self._closed: TMSError | None = None

    def close(self, reason: TMSError) -> None:
        """Refuse every block from now on, for this reason."""
        self._closed = reason

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None,
        inline: Durability,
        stamp: Stamp = PLAIN,
        internal: bool = False,
    ) -> PendingAppend:
        """Hand blocks to their partitions; the calling thread itself writes those that need at most
        `inline`. `stamp` is a transaction's; `internal` blocks were made or checked before."""
        if self._closed is not None or self._owners is not None:
            self._require_open()
        if not internal and name.namespace == SYSTEM_NAMESPACE:
            name.require_writable()
        topic = self._registry.known.get(name) or self._registry.find(name)
        durability = durability or topic.durability
        if not blocks:
            raise Invalid("There is nothing to publish: give at least one block.")
        pending = PendingAppend(len(blocks))
        limits = topic.message_bytes_max, self.block_bytes
        counted: list[tuple[int, BlockHeader]] = []
        tickets: dict[PartitionLog, Ticket] = {}
        elsewhere: dict[Peer, list[int]] = {}
        for number, new in enumerate(blocks):
            partition, block = new.partition, new.block
            opened = self._partitions.logs.get((topic.uid, partition))
            log = opened or self._partitions.find(name, topic, partition)
            header = read_header(block) if internal else check(block, *limits)
            if header.flags & Flags.COUNTS_MESSAGES:
                counted.append((partition, header))
            if not isinstance(log, PartitionLog):
                elsewhere.setdefault(log, []).append(number)
                continue
            ticket = tickets.get(log) or tickets.setdefault(log, Ticket(pending, durability, stamp))
            ticket.entries.append((number, block, header))
            ticket.bytes += len(block)
            if new.expect is not None:
                precondition = self._precondition(log, topic, new, stamp.write_pointer)
                ticket.preconditions[number] = precondition
        if counted:
            require_appends(counted)
        if len(tickets) + len(elsewhere) > 1:  # else it is refused as a whole
            _reserve(tickets)
        for peer, numbers in elsewhere.items():
            self._ask(peer, name, (blocks, durability, stamp), pending, numbers)
        for log, ticket in tickets.items():
            log.writer.submit(ticket, None if durability is Durability.NONE else inline)
        return _acknowledged(pending, blocks) if durability is Durability.NONE else pending

    def _require_open(self) -> None:
        if self._closed is not None:
            raise again(self._closed)
        if self._owners is not None:
            self._owners.require_member()

    def _ask(
        self,
        peer: Peer,
        name: TopicName,
        given: tuple[Sequence[NewBlock], Durability, Stamp],
        pending: PendingAppend,
        numbers: Sequence[int],
    ) -> None:
        """Send the checked blocks with these numbers in the request to their owner."""
        assert self._owners is not None
        durability, stamp = given[1:]
        blocks = [given[0][number] for number in numbers]

        def ask() -> None:
            try:
                places = peer.partitions.store(
                    name, blocks, durability, stamp.flags, stamp.write_pointer, True
                )
            except TMSError as error:
                pending.fail(len(numbers), error)
            except BaseException:
                pending.fail(len(numbers), StorageUnavailable("The owner was not asked."))
                raise
            else:
                for number, place in zip(numbers, places, strict=True):
                    pending.settle(number, place)

        self._owners.ask(ask)

    def look(self, name: TopicName, new: NewBlock, pointer: int) -> None:
        """Raise `WrongLastId` if a block of a transaction certainly violates its precondition, as
        far as this process knows."""
        topic = self._registry.find(name)
        if new.expect is not None and self._partitions.owns(name, topic, new.partition):
            log = self._partitions.get(name, topic, new.partition)
            self._checked(new.block, topic)
            refusal = self._precondition(log, topic, new, pointer).refusal
            if refusal is not None:
                raise refusal

    def _precondition(
        self, log: PartitionLog, topic: TopicRecord, new: NewBlock, pointer: int
    ) -> Precondition:
        """The precondition of a checked block, evaluated on the present log. Raises `Invalid`."""
        if flags_of(new.block) & Flags.COUNTS_MESSAGES:  # it could refuse the second of an append
            raise Invalid(
                "A block of a producer whose sequence counts messages takes no precondition. "
                "Publish it without one, or under a producer that counts blocks.",
                field="expect",
            )
        keys = decode(new.block).keys()
        after = new.expect or NOTHING
        if None in keys and any(key is not None for key in keys):
            raise Invalid(
                "What is expected is about the keys of all messages, or, without keys, about the "
                "partition: give all of them a key, or none.",
                field="expect",
            )
        own = frozenset(key for key in keys if key is not None)
        precondition = Precondition(
            own, after, pointer, self._source.current.fate, log.staged.resolve, after[:2]
        )
        floor = self._retention.floor(topic.retention_ms)
        precondition.pass_over(log.reader.readable_from(floor))
        if after != NOTHING and key_after(after[:2]) < log.reader.complete_from(floor):
            precondition.refuse_to_tell(log.partition)
        position, ended = Position.after(after), False
        while precondition.refusal is None and not ended:
            read = log.reader.read(position, floor, LOOK_BYTES)
            precondition.look(read.blocks)
            position, ended = read.next, read.ended
        return precondition

    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """The number of these blocks that their partitions have, by producer id and sequence."""
        topic = self._registry.find(name)
        parts = split(blocks, lambda new: self._partitions.peer_of(name, topic, new.partition))
        count = 0
        for new in parts.here:
            log = self._partitions.get(name, topic, new.partition)
            count += log.has_block(read_header(new.block))
        for peer, some in parts.elsewhere.items():
            count += peer.partitions.count_stored(name, some)
        return count

    def check(self, name: TopicName, blocks: Sequence[NewBlock]) -> list[BlockHeader]:
        """The headers of blocks that could be stored in a topic. Raises the error of one that could
        not."""
        topic = self._registry.find(name)
        for new in blocks:
            self._partitions.peer_of(name, topic, new.partition)  # raises if it does not exist
        return [self._checked(new.block, topic) for new in blocks]

    def _checked(self, block: Buffer, topic: TopicRecord) -> BlockHeader:
        return check(block, topic.message_bytes_max, self.block_bytes)


def _reserve(tickets: dict[PartitionLog, Ticket]) -> None:
    """Reserve room in all partitions or in none. Raises `Overloaded`, `Closed`."""
    try:
        for log, ticket in tickets.items():
            log.writer.reserve(ticket)
    except TMSError:
        for log, ticket in tickets.items():
            log.writer.release(ticket)
        raise


def _acknowledged(pending: PendingAppend, blocks: Sequence[NewBlock]) -> PendingAppend:
    """The answer for durability `none`: given at once; the outcome of the blocks is only logged."""

    def report() -> None:
        try:
            pending.result(0)
        except TMSError as error:
            _log.error("unacknowledged_append_failed", error=error.message, blocks=len(blocks))

    answer = PendingAppend(len(blocks))
    for index, new in enumerate(blocks):
        count = read_header(new.block).count
        answer.settle(index, Appended(new.partition, -1, -1, count, -1))
    pending.add_done_callback(report)
    return answer
