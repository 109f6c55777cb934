"""The port between Spark and where topics are: what a reader of topics can do.

The driver asks where a topic begins and ends and divides what is to be read into splits; executors
read one split each.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from tms.model.message import StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName


class Split(NamedTuple):
    """The work of one task: the offsets from `start` to before `stop` of a partition. `where`
    belongs to the reader."""

    topic: str
    partition: int
    start: int
    stop: int
    where: bytes = b""


class TopicReader(Protocol):
    """Reads topics that another process owns. Picklable; connects at the first use, and never
    pickles a connection."""

    def names(self, namespace: str) -> Iterable[TopicName]:
        """The topics of a namespace."""
        ...

    def generation(self, topic: str) -> int:
        """The topic's generation. Raises `TopicNotFound`."""
        ...

    def offsets(self, topic: str, at: Position) -> Mapping[int, int]:
        """By partition, the offset of the first message at or after a position. Everything below
        `latest` is decided for good. Raises `TopicNotFound`."""
        ...

    def splits(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int
    ) -> list[Split]:
        """The ranges in about equal parts, at least so many as far as that is possible. They are of
        the topic's generation now."""
        ...

    def read(self, split: Split) -> Iterator[StoredBlock]:
        """The committed blocks that overlap the split, in order; the caller cuts to offsets.

        Raises `OffsetOutOfRange` when its beginning is no longer kept or its end is not there, and
        `TopicNotFound` when the topic has another generation.
        """
        ...

    def close(self) -> None:
        """Release the connections; they are made again when it is used again."""
        ...
