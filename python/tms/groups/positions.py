"""The committed positions of groups, by topic and partition (pure state).

The journal `system:_positions` holds one message for each change, its key `GROUP/TOPIC/PARTITION`,
its value the position, none for a deleted one. Changes that belong to a transaction carry its
write pointer there, like any message, so they count exactly if it commits.

    position alone      id:… | offset:… | …                            its spelling, ASCII
    with metadata       ["p", spelling, metadata, leader epoch]        MessagePack

Invariants

* A change whose expected position is not the current one has no effect; metadata do not count.
* A position without metadata is stored as earlier releases do.
* Positions that a transaction changes are held until it has ended: no other change moves them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from tms.errors import Conflict, DataCorrupt, TMSError
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import CommittedPosition, PositionChange, PositionKey
from tms.runtime.decoding import msgpack_decoder

Move = tuple[PositionKey, CommittedPosition | None]


class Positions:
    """The positions of a shard. Not thread-safe."""

    def __init__(self) -> None:
        self._positions: dict[str, dict[TopicName, dict[int, CommittedPosition]]] = {}
        self.prepared: dict[int, list[Move]] = {}  # by transaction
        self._held: dict[PositionKey, int] = {}  # by transaction

    def of(self, group: str, topic: TopicName) -> Mapping[int, CommittedPosition]:
        """A group's positions in a topic, by partition."""
        return dict(self._positions.get(group, {}).get(topic, {}))

    def topics_of(self, group: str) -> list[TopicName]:
        """The topics in which a group has positions, in order."""
        return sorted(self._positions.get(group, ()))

    def groups(self) -> list[tuple[str, TopicName]]:
        """The groups with positions, each with its topic."""
        return [(group, topic) for group, topics in self._positions.items() for topic in topics]

    def all(self) -> Iterator[tuple[PositionKey, CommittedPosition]]:
        """Every position."""
        for group, topics in self._positions.items():
            for topic, positions in topics.items():
                for partition, position in positions.items():
                    yield PositionKey(group, topic, partition), position

    def check(self, changes: Iterable[PositionChange]) -> None:
        """Raises `Conflict` when a position, or its metadata, are not the expected ones."""
        for change in changes:
            current = self.of_key(change.key)
            self._check_metadata(change, "" if current is None else current.metadata)
            if change.expected is None:
                continue
            now = "" if current is None else str(current.position)
            if now != change.expected:
                key = change.key
                raise Conflict(
                    f"The group {key.group} stands at {now or 'no position'} in partition "
                    f"{key.partition} of {key.topic}, not at {change.expected or 'none'}: another "
                    "consumer moved it. Go on from where it stands now.",
                    group=key.group,
                    topic=str(key.topic),
                    partition=key.partition,
                    position=now,
                )

    def _check_metadata(self, change: PositionChange, now: str) -> None:
        if change.expected_metadata not in (None, now):
            raise Conflict(
                f"The metadata of the position of {change.key.group} in partition "
                f"{change.key.partition} of {change.key.topic} are no longer the expected ones: "
                "another caller has changed them. Look again.",
                group=change.key.group,
                topic=str(change.key.topic),
                partition=change.key.partition,
            )

    def holders(self, keys: Iterable[PositionKey]) -> set[int]:
        """The transactions that hold some of these positions."""
        held = self._held
        return {held[key] for key in keys if key in held} if held else set()

    def holders_of(self, group: str, topics: Collection[TopicName] | None) -> set[int]:
        """The transactions that hold some of a group's positions in some topics, or in any."""
        return {
            id
            for key, id in self._held.items()
            if key.group == group and (topics is None or key.topic in topics)
        }

    def are_held(self, keys: Iterable[PositionKey], id: int) -> bool:
        """True if the transaction holds all of these positions."""
        return all(self._held.get(key) == id for key in keys)

    def hold(self, id: int, moves: Iterable[Move]) -> None:
        """Hold the moves that a transaction has prepared."""
        prepared = self.prepared.setdefault(id, [])
        for move in moves:
            prepared.append(move)
            self._held[move[0]] = id

    def end(self, id: int, committed: bool) -> None:
        """End a transaction: make its prepared moves if it committed, and release them."""
        for key, position in self.prepared.pop(id, ()):
            if self._held.get(key) == id:
                del self._held[key]
                if committed:
                    self.apply(key, position)

    def of_key(self, key: PositionKey) -> CommittedPosition | None:
        """The position of a group in a partition."""
        return self._positions.get(key.group, {}).get(key.topic, {}).get(key.partition)

    def apply(self, key: PositionKey, position: CommittedPosition | None) -> None:
        """Move a position; None deletes it."""
        topics = self._positions.setdefault(key.group, {})
        positions = topics.setdefault(key.topic, {})
        if position is None:
            positions.pop(key.partition, None)
        else:
            positions[key.partition] = position
        if not positions:
            del topics[key.topic]
        if not topics:
            del self._positions[key.group]


class _Extended(msgspec.Struct, array_like=True, tag="p"):
    """The value of a position with metadata."""

    position: str
    metadata: str
    leader_epoch: int


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgpack_decoder(_Extended)


def encode_key(key: PositionKey) -> bytes:
    """The key of a position's journal entry."""
    return f"{key.group}/{key.topic.namespace}:{key.topic.topic}/{key.partition}".encode()


def encode_value(committed: CommittedPosition | None) -> bytes | None:
    """The value of a position's journal entry."""
    if committed is None:
        return None
    text = str(committed.position)
    if committed.is_plain:
        return text.encode()
    return _encode(_Extended(text, committed.metadata, committed.leader_epoch))


def decode_entry(key: bytes | None, value: bytes | None) -> Move:
    """Decode a journal entry. Raises `DataCorrupt`."""
    try:
        group, topic, partition = (key or b"").decode().rsplit("/", 2)
        committed = None if value is None else _decode_value(value)
        return PositionKey(group, TopicName.parse(topic), int(partition)), committed
    except (ValueError, msgspec.MsgspecError, TMSError) as exc:
        raise DataCorrupt(
            f"An entry in the journal of positions cannot be read: {key!r:.80}. Run `tms fsck`."
        ) from exc


def _decode_value(value: bytes) -> CommittedPosition:
    if value[:1].isascii():  # no array of MessagePack begins so
        return CommittedPosition(Position.parse(value.decode()))
    extended = _decoder.decode(value)
    position = Position.parse(extended.position)
    return CommittedPosition(position, extended.metadata, extended.leader_epoch)
