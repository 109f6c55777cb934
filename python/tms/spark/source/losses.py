"""The reaction to messages that a query wants and that are gone: the query fails, or reports the
loss and goes on.

* The option failOnDataLoss decides which. Both name topic, partition and the lost offsets.
* A report is an event at level warning, at most one for a partition in a batch.
"""

from tms.errors import OffsetOutOfRange, TopicNotFound
from tms.runtime.events import EventLog

EXPIRED = "they were truncated, or their retention has ended"
GONE = "the topic was deleted"
RENEWED = "the topic was deleted and created anew"
SHORTER = "the log ends before them"

_log = EventLog("tms.spark")


def created_anew(topic: str) -> TopicNotFound:
    """The error of a topic that has another generation than planned."""
    return TopicNotFound(
        f"The topic {topic} was deleted and created anew while it was read. Start the query again.",
        topic=topic,
    )


def ends_early(topic: str, partition: int, end: int, stop: int, earliest: int) -> OffsetOutOfRange:
    """The error of a partition that ends before what is to be read of it."""
    return OffsetOutOfRange(
        f"Partition {partition} of {topic} ends at offset {end}, but it "
        f"reached {stop} when the query was planned.",
        end=end,
        earliest=min(earliest, end),
    )


class LossRule:
    """`fails`: losing messages is an error."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def lost(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int | None,
        why: str,
        count: int | None = None,
    ) -> None:
        """The offsets from `start` to before `stop` (None: everything from there) cannot be read,
        or `count` of them. Raises `OffsetOutOfRange` unless the query goes on."""
        if not self.fails:
            if count is None and stop is not None:
                count = stop - start
            place = {"topic": topic, "partition": partition, "start": start, "stop": stop}
            _log.warning("offsets lost", **place, offsets=count, because=why)
            return
        which = f"Everything from offset {start}" if stop is None else _named(start, stop)
        raise OffsetOutOfRange(
            f"{which} of partition {partition} of topic {topic} is lost to this query: {why}. To "
            "go on without it set failOnDataLoss=false; to start over, run the query with a new "
            "checkpoint location.",
            topic=topic,
            partition=partition,
            start=start,
            stop=stop,
        )


def _named(start: int, stop: int) -> str:
    return f"Offset {start}" if stop == start + 1 else f"The range of offsets {start} to {stop - 1}"
