"""The offsets of a stream: the content of its checkpoint, and the ends of batches. Pure.

    {"flights": {"0": 23, "1": 42}}             read up to these offsets, as Spark's Kafka source
    {"flights#2": {"0": 5}}                     the same, of the second topic of that name
    {"flights#from": {"1": 7}, "flights": …}    partition 1 was read from offset 7 in this batch

Invariants

* A topic that is deleted and created again is another one: its generation follows its name, unless
  it is the first.
* The checkpoint has the begin and the end of everything that is read. A batch begins at the end of
  the one before. The begin of a partition that was in no batch is noted as `from`, because the
  offset that `latest` or `earliest` meant at that moment cannot be looked up again when the batch
  is repeated.
* Equal offsets have equal JSON: Spark compares the text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tms.errors import Invalid
from tms.model.topic import TOPIC_NAME
from tms.runtime.decoding import convert
from tms.spark.source.splitting import apportioned

_KEY = re.compile(rf"({TOPIC_NAME})(?:#([1-9][0-9]{{0,9}}))?(#from)?")

_LOGGED = dict[str, dict[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]]
Places = Mapping[str, Mapping[int, int]]


class SourceTopic(NamedTuple):
    """A topic from its creation to its deletion; `generation` counts from 1."""

    name: str
    generation: int = 1

    def __str__(self) -> str:
        return self.name if self.generation == 1 else f"{self.name}#{self.generation}"


Offsets = Mapping[SourceTopic, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Up to where a stream has read, and where this batch began in partitions that were in none
    before."""

    ends: Offsets
    begun: Offsets = field(default_factory=dict)


class OffsetRange(NamedTuple):
    """A part of a partition to read."""

    topic: SourceTopic
    partition: int
    start: int
    stop: int


def parse_key(key: str) -> SourceTopic | None:
    """The topic that a name in JSON means; None when it is none, or a `from`."""
    match = _KEY.fullmatch(key)
    if match is None or match[3]:
        return None
    return SourceTopic(match[1], int(match[2] or 1))


def to_json(offsets: StreamOffsets) -> dict[str, dict[str, int]]:
    """The JSON that Spark writes to the checkpoint."""
    said = [(str(topic), places) for topic, places in offsets.ends.items()]
    said += [(f"{topic}#from", places) for topic, places in offsets.begun.items()]
    return {
        key: {str(partition): places[partition] for partition in sorted(places)}
        for key, places in sorted(said)
        if places
    }


def from_json(said: Mapping[str, Any]) -> StreamOffsets:
    """The offsets in a checkpoint. Raises `Invalid` when another source wrote it."""
    ends: dict[SourceTopic, dict[int, int]] = {}
    begun: dict[SourceTopic, dict[int, int]] = {}
    try:
        logged = convert(said, _LOGGED, str_keys=True)
    except msgspec.ValidationError as exc:
        raise _foreign(said) from exc
    for key, places in logged.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _foreign(said)
        (begun if match[3] else ends)[SourceTopic(match[1], int(match[2] or 1))] = places
    return StreamOffsets(ends, begun)


def _foreign(said: Mapping[str, Any]) -> Invalid:
    return Invalid(
        f"The checkpoint holds no offsets of the data source tms: {str(said)[:200]}. Give the "
        "query a checkpoint location of its own.",
        field="checkpointLocation",
    )


def joined(start: StreamOffsets, earliest: Offsets, latest: Offsets) -> tuple[Offsets, Offsets]:
    """The begin of the next batch, and its furthest end, in every existing partition.

    A new partition begins at its earliest message; a topic that is gone is left out. If a log ends
    before its start, the batch goes back to that end.
    """
    starts = {
        topic: {
            partition: start.ends.get(topic, {}).get(
                partition, earliest.get(topic, {}).get(partition, 0)
            )
            for partition in ends
        }
        for topic, ends in latest.items()
    }
    return starts, latest


def readable(starts: Offsets, earliest: Offsets) -> Offsets:
    """Starts without the offsets that retention or a truncation has taken since."""
    return {
        topic: {partition: max(at, earliest[topic].get(partition, 0)) for partition, at in places}
        for topic, places in ((topic, at.items()) for topic, at in starts.items())
    }


def limited(starts: Offsets, stops: Offsets, offsets_max: int) -> Offsets:
    """Stops such that at most `offsets_max` offsets lie before them, divided in proportion to what
    waits in each partition, but at least one for each; when the limit is smaller than that,
    partitions take turns."""
    lags = [
        (topic, partition, stop - starts[topic][partition])
        for topic, ends in sorted(stops.items())
        for partition, stop in sorted(ends.items())
        if stop > starts[topic][partition]
    ]
    if sum(lag for _, _, lag in lags) <= offsets_max:
        return stops
    if offsets_max < len(lags):
        # No memory is needed to take turns: the sum of the starts grows by the limit each time.
        turn = sum(at for places in starts.values() for at in places.values())
        chosen = {(turn + i) % len(lags) for i in range(offsets_max)}
        shares = [int(i in chosen) for i in range(len(lags))]
    else:
        shares = _at_least_one(apportioned([lag for _, _, lag in lags], offsets_max))
    found = {topic: dict(ends) for topic, ends in stops.items()}
    for (topic, partition, _), share in zip(lags, shares, strict=True):
        found[topic][partition] = starts[topic][partition] + share
    return found


def _at_least_one(shares: list[int]) -> list[int]:
    """Shares with the same sum, each at least one: the largest give."""
    needed = shares.count(0)
    at_least = [max(1, share) for share in shares]
    for i in sorted(range(len(at_least)), key=lambda i: -at_least[i]):
        less = min(at_least[i] - 1, needed)
        at_least[i] -= less
        needed -= less
    return at_least


def waiting(starts: Offsets, stops: Offsets) -> int:
    """The number of offsets from `starts` to `stops`, over all partitions."""
    return sum(
        max(0, stop - starts[topic][partition])
        for topic, ends in stops.items()
        for partition, stop in ends.items()
    )


def batch_end(start: StreamOffsets, fresh: bool, starts: Offsets, stops: Offsets) -> StreamOffsets:
    """The offsets that end a batch. `fresh`: its start stands in no checkpoint yet."""
    begun: dict[SourceTopic, dict[int, int]] = {}
    for topic, ends in stops.items():
        known = {} if fresh else start.ends.get(topic, {})
        for partition, stop in ends.items():
            if partition not in known and starts[topic][partition] < stop:
                begun.setdefault(topic, {})[partition] = starts[topic][partition]
    return StreamOffsets(stops, begun)


def ranges(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """The ranges that a batch reads, which repetitions keep."""
    ranges: list[OffsetRange] = []
    if start == end:  # what was begun in the batch before is not begun again
        return ranges
    for topic, ends in sorted(end.ends.items()):
        known = dict(start.ends.get(topic, {})) | dict(end.begun.get(topic, {}))
        for partition, stop in sorted(ends.items()):
            if known.get(partition, stop) < stop:
                ranges.append(OffsetRange(topic, partition, known[partition], stop))
    return ranges
