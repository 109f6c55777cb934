"""Dead letters: messages that no worker could handle go to a topic of their own, and back.

    dying ─▶ read ─▶ one transaction: the copy, and the settlement ─▶ gone from the queue

    redrive: dead letters ─▶ one transaction: the copy in the topic, and the record of settled ones
    discard: dead letters ─▶ the record of settled ones

Invariants

* Copy and settlement commit together: after a crash at any moment a message is dying or dead, never
  both.
* Of two callers who settle dead letters of a partition at the same time one fails: each commits
  only if the record (`model.dead_letters`) is the one that it read.
* A message that cannot be copied stays where it is, and does not keep others from being moved.
* Every message that could be published can be a dead letter, and go back: limits of topics apply to
  messages as published, not to the headers that a dead letter adds.
* Memory is bounded: a transaction has up to `MOVED_MAX` messages of about
  `MOVED_BYTES`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tms.block import decode, encode, read_header, unpacked
from tms.errors import DataCorrupt, Fenced, TMSError, TopicExists, TopicNotFound
from tms.model.dead_letters import LetterId, settled_in, settled_text
from tms.model.ids import MessageId
from tms.model.message import Headers, NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.queue import (
    DEAD_CAUSE,
    DEAD_DELIVERIES,
    DEAD_GROUP,
    DEAD_ORIGIN,
    DEAD_PREFIX,
    Settlement,
    Token,
    dead_letter_topic,
    deliveries_of,
    join_tokens,
    partition_of_origin,
    redrive_group,
)
from tms.model.topic import MESSAGE_BYTES_MAX, TopicName, TopicSettings
from tms.model.transaction import (
    Commit,
    CommittedPosition,
    PositionChange,
    PositionKey,
    TopicBlock,
)
from tms.queues.queue import OpenQueue
from tms.queues.reading import readable_ends
from tms.runtime.events import EventLog
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics
from tms.transactions.participants import InternalCommits, InternalPositions

MOVED_MAX = 1_000  # of a transaction
MOVED_BYTES = 4 << 20  # of a transaction, about, and of a block
COMMIT_TIMEOUT_S = 30.0
_AT_ONCE = 16  # messages of one read: each may be large
_NOWHERE = CommittedPosition(Position.earliest())
_SETTINGS = TopicSettings(1, None, None, message_bytes_max=MESSAGE_BYTES_MAX)
_log = EventLog(__name__)


class MovedMessage(NamedTuple):
    """A message on its way to the dead letters, or back."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    event_time_ms: int | None

    @property
    def bytes(self) -> int:
        """About how large it is."""
        size = sum(len(name) + len(value or b"") for name, value in self.headers.items())
        return size + len(self.key or b"") + len(self.value or b"")


class _Letter(NamedTuple):
    """A dead letter with its place, and the message to move back; None if it is of another queue,
    with which this one shares the topic."""

    offset: int
    id: MessageId
    message: MovedMessage | None


class DeadLetters:
    """Moves messages to dead letter topics and back. Only one thread at a time moves messages of a
    queue."""

    def __init__(
        self, topics: Topics, commits: InternalCommits, positions: InternalPositions
    ) -> None:
        self._log = topics.fetcher
        self._registry = topics.registry
        self._commits = commits
        self._positions = positions

    # -- there -------------------------------------------------------------------------------------

    def move(self, queue: OpenQueue) -> int:
        """Move dying messages; returns how many. The next call tries messages again that could not
        be moved. Raises an error that concerns all of them."""
        moved = 0
        failed: list[Token] = []  # put back already by a commit that failed late
        while tokens := [token for token in queue.take_dying(MOVED_MAX) if token not in failed]:
            moved += self._move_some(queue, tokens, failed)
        queue.return_dying(failed)
        return moved

    def _move_some(self, queue: OpenQueue, tokens: list[Token], failed: list[Token]) -> int:
        """Move messages in one transaction; if that fails, one by one."""
        try:
            return self._commit(queue, tokens)
        except Fenced:  # a late acknowledgement: the next pass takes the others again
            queue.return_dying(tokens)
            return 0
        except TMSError as error:
            if error.retriable:
                queue.return_dying(tokens)
                raise
            if len(tokens) > 1:
                return sum(self._move_some(queue, [token], failed) for token in tokens)
            failed += tokens
            _log.error(
                "dead_letter_not_moved",
                group=queue.group,
                topic=str(queue.topic),
                partition=tokens[0].partition,
                offset=tokens[0].offset,
                error=error.message,
            )
            return 0
        except BaseException:  # the thread was interrupted: the next pass takes them again
            queue.return_dying(tokens)
            raise

    def _commit(self, queue: OpenQueue, tokens: Sequence[Token]) -> int:
        messages: list[MovedMessage] = []
        settled: list[Token] = []
        size = 0
        for at in range(0, len(tokens), _AT_ONCE):
            batch = tokens[at : at + _AT_ONCE]
            if size >= MOVED_BYTES:
                queue.return_dying(batch)
                continue
            for token, message in self._read(queue, batch):
                if size >= MOVED_BYTES:
                    queue.return_dying((token,))
                    continue
                settled.append(token)
                messages.append(message)
                size += message.bytes
        if not messages:
            return 0
        name = dead_letter_topic(queue.group, queue.topic, queue.state.settings.dead_letter)
        tokens_text = tuple(map(str, join_tokens(settled)))
        self._move(
            Commit(
                blocks=_blocks(name, messages, self._record(name)),
                settlements=(Settlement(queue.group, queue.topic, tokens_text),),
            )
        )
        queue.died += len(messages)
        return len(messages)

    def _read(
        self, queue: OpenQueue, tokens: Sequence[Token]
    ) -> Iterator[tuple[Token, MovedMessage]]:
        """Yields each token with its message as a dead letter; settles messages that are gone from
        the log."""
        for partition in {token.partition for token in tokens}:
            by_offset = {
                slice_.offset: slice_ for slice_ in tokens if slice_.partition == partition
            }
            again = queue.find(partition, sorted(by_offset), MOVED_BYTES)
            queue.return_dying(by_offset[offset] for offset in again.left)
            if again.gone:
                queue.settle_gone(tokens[0].epoch, partition, again.gone)
            slices = [
                block.slice(offset, 1, 0) for block, offsets in again.pieces for offset in offsets
            ]
            parts = unpacked(slice_.columns for slice_ in slices)
            for slice_, columns in zip(slices, parts, strict=True):
                token = by_offset[slice_.offset]
                key, value = columns.keys()[0], columns.values()[0]
                headers = self._stamped(queue, token, slice_.id, columns.headers()[0])
                (event_time_ms,) = columns.event_times()
                yield token, MovedMessage(partition, key, value, headers, event_time_ms)

    def _stamped(self, queue: OpenQueue, token: Token, id: MessageId, headers: Headers) -> Headers:
        name = f"{queue.topic.namespace}:{queue.topic.topic}"
        return {
            **headers,
            DEAD_CAUSE: queue.cause_of(token).encode(),
            DEAD_DELIVERIES: str(deliveries_of(token.deliveries)).encode(),
            DEAD_ORIGIN: f"{name}/{token.partition}/{token.offset}/{id}".encode(),
            DEAD_GROUP: queue.group.encode(),
        }

    def _record(self, name: TopicName) -> TopicRecord:
        """The record of a dead letter topic, which is created if it does not exist."""
        try:
            return self._registry.find(name)
        except TopicNotFound:
            try:
                return self._registry.create(name, _SETTINGS)[0]
            except TopicExists:
                return self._registry.find(name)

    # -- and back ----------------------------------------------------------------------------------

    def count(self, queue: OpenQueue) -> int:
        """The number of dead letters that were not moved back; for a damaged topic, an upper
        bound."""
        name = dead_letter_topic(queue.group, queue.topic, queue.state.settings.dead_letter)
        try:
            return self._count(queue, name)
        except TopicNotFound:
            return 0
        except DataCorrupt:  # the start cannot be read: count all messages
            partitions = self._registry.find(name).partitions
            return sum(readable_ends(self._log, name, partitions).values())

    def _count(self, queue: OpenQueue, name: TopicName) -> int:
        ends = self._log.offsets(name, Position.latest())
        positions = self._positions.committed_in(name, redrive_group(queue.group, queue.topic))
        starts: dict[Position, Mapping[int, int]] = {}
        count = 0
        for partition, stop in ends.items():
            at = positions.get(partition, _NOWHERE)
            if at.position not in starts:
                starts[at.position] = self._log.offsets(name, at.position)
            start = starts[at.position].get(partition, 0)
            count += stop - min(stop, start)
            count -= sum(start <= offset < stop for offset in settled_in(at.metadata))
        return count

    def settle_first(self, queue: OpenQueue, limit: int, moves: bool) -> int:
        """Settle up to `limit` dead letters of the queue, the oldest of each partition first: move
        them back to its topic, or only discard them. Returns how many."""
        settled = 0
        for key in self._keys(queue):
            while settled < limit:
                some = self._settle_some(queue, key, min(MOVED_MAX, limit - settled), moves)
                if some is None:
                    break
                settled += some
        return settled

    def settle(self, queue: OpenQueue, letters: Iterable[LetterId], moves: bool) -> int:
        """Settle these dead letters of the queue, as `settle_first` does; passes over those that
        are settled already, gone, or of another queue. Returns how many it settled."""
        wanted: dict[int, list[MessageId]] = {}
        for letter in sorted(set(letters)):
            wanted.setdefault(letter.partition, []).append(letter.id)
        settled = 0
        for key in self._keys(queue):
            left = wanted.get(key.partition, [])
            while left:
                some, left = self._settle_chosen(queue, key, left, moves)
                settled += some
        return settled

    def _keys(self, queue: OpenQueue) -> list[PositionKey]:
        """The positions up to which the queue's dead letters are settled."""
        name = dead_letter_topic(queue.group, queue.topic, queue.state.settings.dead_letter)
        group = redrive_group(queue.group, queue.topic)
        try:
            partitions = self._registry.find(name).partitions
        except TopicNotFound:
            return []
        return [PositionKey(group, name, partition) for partition in range(partitions)]

    def _settle_some(
        self, queue: OpenQueue, key: PositionKey, limit: int, moves: bool
    ) -> int | None:
        """Settle the first dead letters in one transaction; returns None if none is left. Raises
        `Conflict` if others are settled at the same time."""
        before = self._positions.committed_in(key.topic, key.group).get(key.partition)
        start = (before or _NOWHERE).position
        settled = settled_in((before or _NOWHERE).metadata)
        fetched = self._log.fetch(key.topic, [PartitionPosition(key.partition, start)], MOVED_BYTES)
        messages: list[MovedMessage] = []
        last: _Letter | None = None
        for stored in fetched.blocks:
            for letter in _letters_in(queue, stored):
                if start.id is not None and letter.id[:2] <= start.id[:2]:
                    continue
                if len(messages) == limit:
                    break
                last = letter
                if letter.message is not None and letter.offset not in settled:
                    messages.append(letter.message)
        if last is None:
            return None
        left = [offset for offset in settled if offset > last.offset]
        after = CommittedPosition(Position.after(last.id), settled_text(left))
        self._settle(queue, key, before, after, messages if moves else ())
        return len(messages)

    def _settle_chosen(
        self, queue: OpenQueue, key: PositionKey, ids: Sequence[MessageId], moves: bool
    ) -> tuple[int, list[MessageId]]:
        """Settle some of the dead letters with these ids, in order, in one transaction; returns how
        many, and the ids that it has not looked at. Raises as `_settle_some` does."""
        before = self._positions.committed_in(key.topic, key.group).get(key.partition)
        at = before or _NOWHERE
        start = self._log.offsets(key.topic, at.position).get(key.partition, 0)
        settled = {offset for offset in settled_in(at.metadata) if offset >= start}
        left = list(ids)
        messages: list[MovedMessage] = []
        places: dict[int, MessageId] = {}  # by offset
        size = 0
        while left and size < MOVED_BYTES:
            place = PartitionPosition(key.partition, Position.at(left[0]))
            wanted = set(left)
            looked = left[0]
            for stored in self._log.fetch(key.topic, [place], 1).blocks:
                for offset, id, message in _letters_in(queue, stored):
                    looked = max(looked, id)
                    is_open = offset >= start and offset not in settled
                    if id in wanted and is_open and message is not None:
                        settled.add(offset)
                        places[offset] = id
                        messages.append(message)
                        size += message.bytes
            left = [id for id in left if id > looked]
        if messages:
            after = _advanced(at.position, start, settled, places)
            self._settle(queue, key, before, after, messages if moves else ())
        return len(messages), left

    def _settle(
        self,
        queue: OpenQueue,
        key: PositionKey,
        before: CommittedPosition | None,
        after: CommittedPosition,
        messages: Sequence[MovedMessage],
    ) -> None:
        """Move messages back to the topic, and the record of settled dead letters with them, if it
        is the one `before`."""
        change = PositionChange(
            key,
            after.position,
            "" if before is None else str(before.position),
            metadata=after.metadata,
            expected_metadata="" if before is None else before.metadata,
        )
        record = self._registry.find(queue.topic)
        blocks = _blocks(queue.topic, messages, record, home=True)
        self._move(Commit(blocks=blocks, positions=(change,)))

    def _move(self, request: Commit) -> None:
        """Commit blocks made in this process, of messages that were checked when they were
        published."""
        self._commits.submit_internal(request, _nothing).result(COMMIT_TIMEOUT_S)


def _nothing() -> None:
    """Do nothing: the commit needs no check when it begins."""


def _advanced(
    position: Position, start: int, settled: Collection[int], places: Mapping[int, MessageId]
) -> CommittedPosition:
    """The record of settled letters, with the position as far on as no letter before it is open:
    behind one of those whose ids are known. `start` is the offset of the position."""
    last = start - 1
    offset = start
    while offset in settled:
        if offset in places:
            last = offset
        offset += 1
    if last >= start:
        position = Position.after(places[last])
    return CommittedPosition(position, settled_text([one for one in settled if one > last]))


def _letters_in(queue: OpenQueue, stored: StoredBlock) -> Iterator[_Letter]:
    """The messages of a block of dead letters; those of other queues have no message."""
    columns, header = decode(stored.block), read_header(stored.block)
    first = stored.last_sequence - header.count + 1
    cells = zip(
        columns.index,
        columns.keys(),
        columns.values(),
        columns.headers(),
        columns.event_times(),
        strict=True,
    )
    for distance, key, value, headers, event_time_ms in cells:
        id = MessageId(stored.time_ms, first + distance)
        origin = partition_of_origin(headers, queue.topic, queue.group)
        message = None
        if origin is not None:
            message = MovedMessage(origin, key, value, _without(headers), event_time_ms)
        yield _Letter(header.base_offset + distance, id, message)


def _without(headers: Headers) -> Headers:
    return {name: value for name, value in headers.items() if not name.startswith(DEAD_PREFIX)}


def _blocks(
    name: TopicName, messages: Iterable[MovedMessage], record: TopicRecord, home: bool = False
) -> tuple[TopicBlock, ...]:
    """Pack messages into blocks of a topic, each into the partition of its key; with `home`, into
    the partition that it came from."""
    places: dict[int, list[MovedMessage]] = {}
    for message in messages:
        if message.key is not None and not home:
            place = record.partitioner.partition_of(message.key, record.partitions)
        else:
            place = message.partition % record.partitions
        places.setdefault(place, []).append(message)
    blocks = []
    for place, of_place in places.items():
        for part in _batches(of_place):
            block = encode(
                [message.value for message in part],
                [message.key for message in part],
                [message.headers or None for message in part],
                [message.event_time_ms for message in part],
            )
            blocks.append(TopicBlock(name, NewBlock(place, block)))
    return tuple(blocks)


def _batches(messages: Sequence[MovedMessage]) -> Iterable[list[MovedMessage]]:
    """Split messages into batches that fit into a block."""
    part: list[MovedMessage] = []
    size = 0
    for message in messages:
        if part and size + message.bytes > MOVED_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += message.bytes
    if part:
        yield part
