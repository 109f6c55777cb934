"""Journal entries of a queue, in `system:_queues`.

The key of an entry is `GROUP/TOPIC` for the queue itself and `GROUP/TOPIC/PARTITION` for one of its
partitions. The value is one of the structs below as a MessagePack array that begins with its tag. A
deleted queue has an entry without value. Entries that belong to a transaction carry its write
pointer, like any message: they count exactly if it commits.

Invariants

* Entries state results, not steps: deliveries are numbers, so an entry that repeats another, or
  follows one that was never stored, does no harm.
* `when_ms` is the wall time of the entry; leases and delays are the time left then.
* A snapshot counts once all of its chunks were read, one after another.
"""

from functools import lru_cache

import msgspec

from tms.errors import DataCorrupt, TMSError
from tms.model.queue import QueueSettings
from tms.model.topic import TopicName
from tms.queues.runs import Runs
from tms.runtime.decoding import msgpack_decoder

KEYS_CACHED_MAX = 4_096
NOWHERE = -1  # `at` while a partition was never looked at


class Declared(msgspec.Struct, frozen=True, array_like=True, tag="D"):
    """The queue exists with these settings. `starts` holds partition, frontier and `at` of
    partitions that begin elsewhere than at the first message. Another epoch makes it a new queue.
    `losses` counts power losses that took messages the queue had seen; older tokens are late."""

    settings: QueueSettings
    epoch: int
    topic_uid: int
    created_ms: int
    starts: list[tuple[int, int, int]] = []
    losses: int = 0


class Advanced(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """All messages from `first` up to `stop` were looked at. Messages in `leased` were leased for
    the first time, messages in `blocked` wait for an earlier one of their key, and all others are
    settled because no reader can see them. `at` is the id of the last message (ms << 16 |
    sequence). `hashes` has 8 bytes of the key of each leased and then each blocked message, if the
    queue is ordered by key."""

    first: int
    stop: int
    at: int
    leased: Runs
    lease_ms: int
    when_ms: int
    blocked: Runs = []
    hashes: bytes = b""


class Leased(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Messages were leased again; `deliveries` has the number of the delivery for each run."""

    runs: Runs
    deliveries: list[int]
    lease_ms: int
    when_ms: int


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Messages were settled, and are never delivered again."""

    runs: Runs


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Messages were returned by a nack; `delays_ms` has the delay before the next delivery for each
    run."""

    runs: Runs
    delays_ms: list[int]
    when_ms: int


class Released(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """Messages were released, and wait for their next delivery; `deliveries` has, for each run, the
    number of the delivery without the one that was taken back."""

    runs: Runs
    deliveries: list[int]


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The leases of messages were extended: they last `lease_ms` from `when_ms` on."""

    runs: Runs
    lease_ms: int
    when_ms: int


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """Messages wait for their move to the dead letters."""

    runs: Runs
    cause: str


class Rewound(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """The log ended at `stop` when the service started, with the last id `at`: a power loss took
    all messages from there on, so their state is dropped."""

    stop: int
    at: int


class PartitionSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="K"):
    """Chunk `number` of the `chunks` of a snapshot of the partition: runs of what is not settled,
    with a value for each: left ms << 23 | state << 20 | deliveries. `held`: pointer, first offset
    and count of what a commit under way settles. `releases`: how often the messages of each run
    were released, empty if none was."""

    number: int
    chunks: int
    frontier: int
    at: int
    when_ms: int
    runs: Runs
    values: list[int]
    hashes: bytes = b""
    causes: dict[int, str] = {}
    held: list[tuple[int, int, int]] = []
    releases: list[int] = []


PartitionEdit = (
    Advanced
    | Leased
    | Settled
    | Returned
    | Released
    | Extended
    | Rejected
    | Rewound
    | PartitionSnapshot
)
_partition_decoder: msgspec.msgpack.Decoder[PartitionEdit] = msgpack_decoder(PartitionEdit)  # type: ignore[arg-type]
_queue_decoder = msgpack_decoder(Declared)
encode = msgspec.msgpack.Encoder().encode


@lru_cache(KEYS_CACHED_MAX)
def queue_key(group: str, topic: TopicName, partition: int | None = None) -> bytes:
    """The key of an entry."""
    name = f"{group}/{topic.namespace}:{topic.topic}"
    return (name if partition is None else f"{name}/{partition}").encode()


@lru_cache(KEYS_CACHED_MAX)
def decode_key(key: bytes | None) -> tuple[str, TopicName, int | None]:
    """Group, topic and, unless it is about the queue itself, partition. Raises `DataCorrupt`."""
    try:
        group, topic, *rest = (key or b"").decode().split("/")
        partition = int(*rest) if rest else None
        return group, TopicName.parse(topic), partition
    except (ValueError, TypeError, TMSError) as exc:
        raise _corrupt(key) from exc


def decode_queue(key: bytes | None, value: bytes) -> Declared:
    """An entry about the queue itself. Raises `DataCorrupt`."""
    try:
        return _queue_decoder.decode(value)
    except (msgspec.MsgspecError, TMSError) as exc:
        raise _corrupt(key) from exc


def decode_edit(key: bytes | None, value: bytes) -> PartitionEdit:
    """An entry about a partition. Raises `DataCorrupt`."""
    try:
        return _partition_decoder.decode(value)
    except (msgspec.MsgspecError, TMSError) as exc:
        raise _corrupt(key) from exc


def _corrupt(key: bytes | None) -> DataCorrupt:
    return DataCorrupt(
        f"An entry in the journal of queues cannot be read: {key!r:.80}. Run `tms fsck`."
    )
