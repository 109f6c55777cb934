"""Bodies of transactions and positions.

A commit is `application/vnd.tms.commit` (big-endian):

    0  4  bytes of the head
    4  …  head: JSON, `CommitHead`
    …  …  the blocks of all topics of the head, one topic after another, framed as in `bodies`

* Unpacking copies no block: they are memoryviews of the body.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct as Layout
from typing import Annotated

import msgspec
from msgspec import Meta

from tms.api import bodies
from tms.api.operation import POSITION_TEXT, Codec
from tms.block import MESSAGES_MAX
from tms.errors import Invalid, Malformed, TooLarge, TransactionNotFound
from tms.model.message import Appended, Buffer, NewBlock
from tms.model.position import Position
from tms.model.preconditions import expected_text, parse_expected
from tms.model.queue import TOKENS_MAX, Settlement, Token
from tms.model.spelling import decimal_up_to, keyed_by
from tms.model.topic import TopicName, parse_durability
from tms.model.transaction import (
    LEADER_EPOCH_MAX,
    METADATA_CHARS_MAX,
    NO_LEADER_EPOCH,
    TOKEN_CHARS_MAX,
    Commit,
    CommitResult,
    CommittedPosition,
    Owner,
    PositionChange,
    PositionKey,
    TopicAppended,
    TopicBlock,
    TopicStaged,
    check_group,
)
from tms.runtime.decoding import json_decoder

_LENGTH = Layout(">I")
HEAD_BYTES_MAX = 8 << 20  # also of a body of positions
STORED_PARTITIONS = 1 << 16
StoredPartition = Annotated[int, Meta(ge=0, lt=STORED_PARTITIONS)]
Metadata = Annotated[str, Meta(max_length=METADATA_CHARS_MAX)]
LeaderEpoch = Annotated[int, Meta(ge=NO_LEADER_EPOCH, le=LEADER_EPOCH_MAX)]
STORED_PARTITION = decimal_up_to(STORED_PARTITIONS - 1)
_BY_PARTITION = keyed_by(STORED_PARTITION)


class PositionBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A position that a commit moves; `expected` "" means that there is none yet."""

    group: str
    topic: str
    partition: StoredPartition
    position: str
    expected: str | None = None
    owner: Owner | None = None
    metadata: Metadata = ""
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    expected_metadata: Metadata | None = None


class TopicPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The number of blocks of a commit for one topic, and the preconditions of these blocks by
    their number in the topic."""

    topic: str
    blocks: Annotated[int, Meta(ge=0)]
    expect: dict[int, str] = {}


class StagedPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The number of blocks staged in a partition, and the producers that count if only some do."""

    topic: str
    partition: StoredPartition
    blocks: Annotated[int, Meta(ge=1)]
    producers: list[Annotated[int, Meta(ge=1)]] = []


class SettlementBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages of a queue that the commit acknowledges."""

    group: str
    topic: str
    tokens: Annotated[list[str], Meta(min_length=1, max_length=TOKENS_MAX)]


class CommitHead(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A commit without its blocks; `changes` are base64. A service refuses a head with fields that
    it does not know, because a commit is done as a whole."""

    topics: list[TopicPart] = []
    positions: list[PositionBody] = []
    changes: list[bytes] = []
    token: str = ""
    durability: str | None = None
    staged: list[StagedPart] = []
    settlements: list[SettlementBody] = []


class Placed(msgspec.Struct):
    """The place of a block of a commit."""

    topic: str
    place: Appended


class CommittedBody(msgspec.Struct):
    """Answer to a commit."""

    transaction_id: int
    appended: list[Placed] = []


class PositionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """A group's positions in a topic, by partition."""

    positions: Annotated[dict[StoredPartition, POSITION_TEXT], _BY_PARTITION]


class PositionWithMetadata(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A position to be set, and the metadata to be stored with it."""

    position: POSITION_TEXT
    metadata: Metadata = ""
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


class MovesBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Positions of a group in a topic that are to be set, by partition, with their
    preconditions."""

    positions: Annotated[dict[StoredPartition, POSITION_TEXT | PositionWithMetadata], _BY_PARTITION]
    expected: Annotated[dict[StoredPartition, str], _BY_PARTITION] = {}
    owners: Annotated[dict[StoredPartition, Owner], _BY_PARTITION] = {}


_head_decoder = json_decoder(CommitHead)


def encode_commit(commit: Commit) -> list[Buffer]:
    """The body, as chunks to send one after another."""
    parts: dict[TopicName, list[NewBlock]] = {}
    for topic, new in commit.blocks:
        parts.setdefault(topic, []).append(new)
    head = bodies.encode(_head(commit, parts))
    chunks: list[Buffer] = [_LENGTH.pack(len(head)) + head]
    for blocks in parts.values():
        chunks += bodies.frames(blocks)
    return chunks


def _head(commit: Commit, parts: Mapping[TopicName, list[NewBlock]]) -> CommitHead:
    return CommitHead(
        [_topic_part(topic, blocks) for topic, blocks in parts.items()],
        [_position_body(change) for change in commit.positions],
        [*commit.changes],
        commit.token,
        None if commit.durability is None else commit.durability.value,
        [
            StagedPart(full_name(one.topic), one.partition, one.blocks, [*one.producers])
            for one in commit.staged
        ],
        [
            SettlementBody(one.group, full_name(one.topic), [*one.tokens])
            for one in commit.settlements
        ],
    )


def head_bytes(body: Buffer) -> int:
    """The length of a commit's head, from its first bytes."""
    return int(_LENGTH.unpack_from(body)[0]) if len(body) >= _LENGTH.size else -1


def decode_commit(body: Buffer, transaction_id: int, own: bool = False) -> Commit:
    """The commit in a body; one of an instance's `own` may move TMS's own groups. Raises
    `Malformed`, `Invalid`, `BadBlock`, `TooLarge`."""
    view = memoryview(body)
    length = head_bytes(view)
    start = _LENGTH.size + length
    if not 0 < length <= min(HEAD_BYTES_MAX, len(view) - _LENGTH.size):
        raise Malformed("The body of a commit begins with the length of its head and the head.")
    try:
        head = _head_decoder.decode(view[_LENGTH.size : start])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise Malformed(f"The head of the commit cannot be read: {exc}.") from exc
    new = bodies.unframe_new(view[start:]) if start < len(view) else []
    if sum(part.blocks for part in head.topics) != len(new):
        raise Malformed(
            f"The head names {sum(part.blocks for part in head.topics)} blocks, the body has "
            f"{len(new)}."
        )
    if len(head.positions) > MESSAGES_MAX:
        raise TooLarge(f"One commit moves at most {MESSAGES_MAX} positions.")
    check_token(head.token)
    following = iter(new)
    blocks = tuple(one for part in head.topics for one in _blocks_of(part, following))
    return Commit(
        transaction_id,
        head.token,
        blocks,
        tuple(_position_change(one, own) for one in head.positions),
        tuple(head.changes),
        None if head.durability is None else parse_durability(head.durability),
        tuple(map(_staged, head.staged)),
        tuple(map(_settlement, head.settlements)),
    )


def check_token(token: str) -> str:
    """The token itself. Raises `Invalid`."""
    if len(token) > TOKEN_CHARS_MAX or not (token.isascii() and token.isprintable()):
        raise Invalid(
            f"A token is up to {TOKEN_CHARS_MAX} printable ASCII characters.", field="token"
        )
    return token


def _topic_part(topic: TopicName, blocks: list[NewBlock]) -> TopicPart:
    expect = {
        number: expected_text(new.expect)
        for number, new in enumerate(blocks)
        if new.expect is not None
    }
    return TopicPart(full_name(topic), len(blocks), expect)


def _blocks_of(part: TopicPart, following: Iterator[NewBlock]) -> Iterator[TopicBlock]:
    if any(not 0 <= number < part.blocks for number in part.expect):
        raise Malformed("`expect` names a block that the topic has not.")
    topic = TopicName.parse(part.topic)
    for number in range(part.blocks):
        new = next(following)
        if number in part.expect:
            new = msgspec.structs.replace(new, expect=parse_expected(part.expect[number]))
        yield TopicBlock(topic, new)


def _staged(part: StagedPart) -> TopicStaged:
    if any(number >= 1 << 64 for number in part.producers):
        raise Invalid("A producer id is a positive number of 64 bits.", field="staged")
    name = TopicName.parse(part.topic)
    return TopicStaged(name, part.partition, part.blocks, tuple(part.producers))


def _settlement(body: SettlementBody) -> Settlement:
    for token in body.tokens:
        Token.parse(token)
    return Settlement(check_group(body.group), TopicName.parse(body.topic), tuple(body.tokens))


def _position_body(change: PositionChange) -> PositionBody:
    key = change.key
    return PositionBody(
        key.group,
        full_name(key.topic),
        key.partition,
        str(change.position),
        change.expected,
        change.owner,
        change.metadata,
        change.leader_epoch,
        change.expected_metadata,
    )


def _position_change(body: PositionBody, own: bool) -> PositionChange:
    group = body.group if own else check_group(body.group)
    key = PositionKey(group, TopicName.parse(body.topic), body.partition)
    position = Position.parse(body.position)
    return PositionChange(
        key,
        position,
        body.expected,
        body.owner,
        body.metadata,
        body.leader_epoch,
        body.expected_metadata,
    )


def encode_moves(changes: Sequence[PositionChange]) -> MovesBody:
    """Changes of positions of one group in one topic."""
    return MovesBody(
        {one.key.partition: _set_position(one.committed) for one in changes},
        {one.key.partition: one.expected for one in changes if one.expected is not None},
        {one.key.partition: one.owner for one in changes if one.owner is not None},
    )


def _set_position(at: CommittedPosition) -> str | PositionWithMetadata:
    text = str(at.position)
    return text if at.is_plain else PositionWithMetadata(text, at.metadata, at.leader_epoch)


def decode_moves(topic: TopicName, group: str, body: MovesBody) -> list[PositionChange]:
    """Changes of positions of a group in a topic. Raises `Invalid`."""
    changes = []
    for partition, to in body.positions.items():
        one = PositionWithMetadata(to) if isinstance(to, str) else to
        changes.append(
            PositionChange(
                PositionKey(group, topic, partition),
                Position.parse(one.position),
                body.expected.get(partition),
                body.owners.get(partition),
                one.metadata,
                one.leader_epoch,
            )
        )
    return changes


def _share(head: CommitHead) -> Commit:
    return Commit(
        positions=tuple(_position_change(one, own=True) for one in head.positions),
        settlements=tuple(map(_settlement, head.settlements)),
    )


SHARE: Codec[Commit] = Codec(CommitHead, _share, lambda commit: _head(commit, {}))


def encode_result(result: CommitResult) -> bytes:
    """The answer to a commit."""
    placed = [Placed(full_name(block.topic), block.place) for block in result.appended]
    return bodies.encode(CommittedBody(result.transaction_id, placed))


def decode_result(body: Buffer) -> CommitResult:
    """The answer to a commit. Raises `Malformed`."""
    answer = bodies.decode(body, CommittedBody)
    appended = tuple(
        TopicAppended(TopicName.parse(placed.topic), placed.place) for placed in answer.appended
    )
    return CommitResult(answer.transaction_id, appended)


POSITIONS: Codec[Mapping[int, Position]] = Codec(
    PositionsBody,
    lambda body: {partition: Position.parse(at) for partition, at in body.positions.items()},
    lambda positions: PositionsBody({partition: str(at) for partition, at in positions.items()}),
)


def transaction_id(text: str) -> int:
    """The id in a path. Raises `TransactionNotFound`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise TransactionNotFound(f"There is no transaction {text[:40]!r}: an id is a number.")
    return int(text)


def full_name(topic: TopicName) -> str:
    """The topic's name with its namespace."""
    return f"{topic.namespace}:{topic.topic}"
