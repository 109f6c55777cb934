"""The messages of a transaction that wait for its commit, in batches that become a block each."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from tms.block import MESSAGES_MAX, encode
from tms.client.batching import REQUEST_BYTES
from tms.model.ids import MessageId
from tms.model.message import Headers
from tms.model.topic import TopicName

MANY = 4_096


class PartitionBatch(Struct, eq=False):
    """The messages for one partition; `keys`, `headers` and `event_times` are empty while
    none has any."""

    name: TopicName
    partition: int
    expect: MessageId | None = None
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[Headers | None] = []
    event_times: list[int | None] = []
    places: list[int] = []
    bytes: int = 0
    number: tuple[int, int] = (0, 0)  # producer id and sequence, once it is staged

    def block(self) -> bytearray:
        """All of them, packed."""
        return encode(
            self.values,
            self.keys or None,
            self.headers or None,
            self.event_times or None,
            producer_id=self.number[0],
            producer_sequence=self.number[1],
        )


class Batches:
    """All that wait, in order. Not thread-safe."""

    def __init__(self) -> None:
        self.all: list[PartitionBatch] = []
        self._newest: dict[tuple[str, int], PartitionBatch] = {}

    def room(
        self, name: TopicName, topic: str, partition: int, size: int, count: int
    ) -> PartitionBatch:
        """The batch of a partition that takes so much more."""
        batch = self._newest.get((topic, partition))
        if (
            batch is None
            or batch.bytes + size > REQUEST_BYTES
            or len(batch.values) + count > MESSAGES_MAX
        ):
            return self.begin(name, topic, partition)
        return batch

    def begin(
        self, name: TopicName, topic: str, partition: int, expect: MessageId | None = None
    ) -> PartitionBatch:
        """Another batch; one that expects something stays by itself."""
        batch = PartitionBatch(name, partition, expect)
        self.all.append(batch)
        if expect is None:
            self._newest[topic, partition] = batch
        else:
            self._newest.pop((topic, partition), None)
        return batch

    def by_topic(self) -> list[PartitionBatch]:
        """The batches as the answer has them: those of a topic together."""
        order = {
            name: number for number, name in enumerate(dict.fromkeys(b.name for b in self.all))
        }
        return sorted(self.all, key=lambda batch: order[batch.name])

    def close(self) -> None:
        """Begin new batches with the next message."""
        self._newest.clear()


def parts_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of messages that fit into a block."""
    if 0 < len(sizes) <= MANY and sum(sizes) <= REQUEST_BYTES:
        yield 0, len(sizes)
        return
    start = size = 0
    for number, one in enumerate(sizes):
        if number > start and (size + one > REQUEST_BYTES or number - start == MANY):
            yield start, number
            start, size = number, 0
        size += one
    if sizes:
        yield start, len(sizes)
