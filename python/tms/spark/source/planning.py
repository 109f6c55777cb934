"""The driver's part: where topics begin and end at this moment, and how what is to be read is
divided into tasks.

Invariants

* Offsets are those of one generation of a topic: its generation is known before them, and is the
  same when it is asked for after them. Generations only grow.
* The ends of the topics are looked up first, and every other place is within them: messages that
  come in between belong to a later batch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tms.errors import Invalid, OffsetOutOfRange, TopicNotFound
from tms.model.position import Position
from tms.model.topic import DEFAULT_NAMESPACE
from tms.spark.source.losses import EXPIRED, GONE, RENEWED, LossRule
from tms.spark.source.offsets import OffsetRange, Offsets, SourceTopic
from tms.spark.source.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions, Subscription
from tms.spark.source.splitting import apportioned, cut
from tms.spark.source.topics import Split, TopicReader

_LOOKS_MAX = 5  # at a topic whose generation changes each time


def subscribed(topics: TopicReader, subscription: Subscription) -> list[str]:
    """The names of the topics to read now. A pattern is of the namespace `default`, unless it
    begins with the name of another one and a colon."""
    if not subscription.pattern:
        return sorted(subscription.names or subscription.partitions)
    wanted = re.compile(subscription.pattern)
    named = re.match(r"([A-Za-z0-9_]+):", subscription.pattern)
    return sorted(
        str(name)
        for name in topics.names(named[1] if named else DEFAULT_NAMESPACE)
        if wanted.fullmatch(str(name)) or wanted.fullmatch(f"{name.namespace}:{name.topic}")
    )


def latest(
    topics: TopicReader,
    subscription: Subscription,
    known: Iterable[SourceTopic] = (),
    must: bool = True,
) -> dict[SourceTopic, dict[int, int]]:
    """Up to where the topics can be read at this moment. Raises `TopicNotFound` for one that is
    named, unless it need not be there."""
    generations = dict(known)
    found: dict[SourceTopic, dict[int, int]] = {}
    for name in subscribed(topics, subscription):
        try:
            topic, ends = _end_of(topics, name, generations.get(name, 0))
        except TopicNotFound:
            if must and not subscription.pattern:
                raise
            continue
        wanted = subscription.partitions.get(name, tuple(ends))
        for partition in wanted:
            if partition not in ends:
                raise Invalid(
                    f"The option assign names partition {partition} of {name}, which has "
                    f"partitions 0 to {len(ends) - 1}.",
                    field="assign",
                )
        found[topic] = {partition: ends[partition] for partition in wanted}
    return found


def _end_of(
    topics: TopicReader, name: str, generation: int
) -> tuple[SourceTopic, Mapping[int, int]]:
    generation = generation or topics.generation(name)
    for _ in range(_LOOKS_MAX):
        ends = topics.offsets(name, Position.latest())
        before, generation = generation, topics.generation(name)
        if generation == before:
            return SourceTopic(name, generation), ends
    raise TopicNotFound(
        f"The topic {name} is deleted and created again and again; start the query when it stays.",
        topic=name,
    )


def earliest(
    topics: TopicReader, which: Iterable[SourceTopic], within: Offsets
) -> dict[SourceTopic, dict[int, int]]:
    """The begin of these topics."""
    return {topic: _at(topics, topic, Position.earliest(), within[topic]) for topic in which}


def _at(
    topics: TopicReader, topic: SourceTopic, position: Position, within: Mapping[int, int]
) -> dict[int, int]:
    found = topics.offsets(topic.name, position)
    return {partition: min(found.get(partition, end), end) for partition, end in within.items()}


def resolved(
    topics: TopicReader, bound: Bound, within: Offsets, options: ReadOptions
) -> dict[SourceTopic, dict[int, int]]:
    """The offsets that a bound means in topics that end at `within`. Raises `Invalid` for places
    that do not fit the topics, `OffsetOutOfRange` for offsets that are gone."""
    rule = LossRule(options.fail_on_data_loss)
    found = {}
    _check_topics(bound, within)
    for topic, ends in within.items():
        if bound.kind is BoundKind.LATEST:
            found[topic] = dict(ends)
        elif bound.kind is BoundKind.EARLIEST:
            found[topic] = _at(topics, topic, Position.earliest(), ends)
        elif bound.kind is BoundKind.OFFSETS:
            found[topic] = _given(topics, topic, bound, ends, rule)
        else:
            found[topic] = _by_time(topics, topic, bound, ends, options)
        if bound.kind is not BoundKind.LATEST and topics.generation(topic.name) != topic.generation:
            raise OffsetOutOfRange(
                f"The topic {topic.name} was deleted and created anew while the query began; start "
                "it again.",
                topic=topic.name,
            )
    return found


def _check_topics(bound: Bound, within: Offsets) -> None:
    """Check that the topics of an option exist, in their current generation."""
    generations = {topic.name: topic.generation for topic in within}
    for name in bound.places:
        if name not in generations:
            raise Invalid(
                f"The option {bound.option} names the topic {name}, which is not read.",
                field=bound.option,
            )
        meant, is_now = bound.generations.get(name), generations[name]
        if meant not in (None, is_now):
            raise Invalid(
                f"The option {bound.option} names generation {meant} of the topic {name}, but it "
                f"was deleted and created anew: it is generation {is_now}, with other offsets.",
                field=bound.option,
            )


def _places(bound: Bound, topic: SourceTopic, ends: Mapping[int, int]) -> Mapping[int, int]:
    """The places in an option for a topic: one for every partition."""
    places = bound.places.get(topic.name, {})
    for partition in sorted(set(ends).symmetric_difference(places)):
        said = "has no place for" if partition in ends else "names"
        raise Invalid(
            f"The option {bound.option} {said} partition {partition} of {topic.name}. Name the "
            "partitions that are read, and no other.",
            field=bound.option,
        )
    return places


def _given(
    topics: TopicReader, topic: SourceTopic, bound: Bound, ends: Mapping[int, int], rule: LossRule
) -> dict[int, int]:
    begin = _at(topics, topic, Position.earliest(), ends)
    found = {}
    for partition, given in _places(bound, topic, ends).items():
        low, high = begin[partition], ends[partition]
        at = {EARLIEST: low, LATEST: high}.get(given, given)
        if at > high:
            raise Invalid(
                f"The option {bound.option} names offset {at} of partition {partition} of "
                f"{topic.name}, which ends at {high}. Name one from {low} to {high}, or -1.",
                field=bound.option,
            )
        if at < low and bound.option.startswith("starting"):
            rule.lost(topic.name, partition, at, low, EXPIRED)
            at = low
        found[partition] = at
    return found


def _by_time(
    topics: TopicReader,
    topic: SourceTopic,
    bound: Bound,
    ends: Mapping[int, int],
    options: ReadOptions,
) -> dict[int, int]:
    times = (
        dict.fromkeys(ends, bound.time_ms)
        if bound.kind is BoundKind.TIME
        else _places(bound, topic, ends)
    )
    at_time = {
        time_ms: _at(topics, topic, Position.time(time_ms), ends) for time_ms in set(times.values())
    }
    found = {partition: at_time[time_ms][partition] for partition, time_ms in times.items()}
    if bound.option.startswith("ending") or options.unmatched_is_latest:
        return found
    for partition, at in sorted(found.items()):
        if at >= ends[partition]:
            raise Invalid(
                f"Partition {partition} of {topic.name} has no message at or after "
                f"{times[partition]} ms, which {bound.option} names. Give an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest to begin at its end.",
                field=bound.option,
            )
    return found


def planned(
    topics: TopicReader, ranges: Sequence[OffsetRange], options: ReadOptions
) -> list[Split]:
    """The splits that read these ranges. Lost messages are reported and left out."""
    rule = LossRule(options.fail_on_data_loss)
    by_topic = [
        (topic, list(ranges_)) for topic, ranges_ in groupby(ranges, lambda range_: range_.topic)
    ]
    lengths = [sum(range_.stop - range_.start for range_ in ranges_) for _, ranges_ in by_topic]
    shares = apportioned(lengths, options.min_partitions)
    found: list[Split] = []
    for (topic, ranges_), share in zip(by_topic, shares, strict=True):
        found += _planned_of(topics, topic, ranges_, share, rule)
    return cut(found, options.max_records_per_partition)


def _planned_of(
    topics: TopicReader,
    topic: SourceTopic,
    ranges: Sequence[OffsetRange],
    share: int,
    rule: LossRule,
) -> list[Split]:
    """The splits of one topic. Its generation is asked for last: until then it was no later one."""
    try:
        kept = topics.offsets(topic.name, Position.earliest())
        starts = {
            range_.partition: max(range_.start, kept.get(range_.partition, 0)) for range_ in ranges
        }
        wanted = {range_.partition: (starts[range_.partition], range_.stop) for range_ in ranges}
        splits = topics.splits(topic.name, wanted, share)
        generation = topics.generation(topic.name)
    except TopicNotFound:
        generation = 0
    if generation != topic.generation:
        for range_ in ranges:
            rule.lost(*_place(range_), range_.stop, RENEWED if generation else GONE)
        return []
    for range_ in ranges:
        if range_.start < starts[range_.partition]:
            rule.lost(*_place(range_), min(range_.stop, starts[range_.partition]), EXPIRED)
    return splits


def _place(range_: OffsetRange) -> tuple[str, int, int]:
    return range_.topic.name, range_.partition, range_.start
