"""The driver's part: where topics begin and end at this moment, and how what is to be read is
divided into tasks.

Invariants

* Offsets are those of one generation of a topic: its generation is known before them, and is the
  same when it is asked for after them. Generations only grow.
* How far topics go is found out first, and every other place is within that: what comes in between
  is of a later batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tms.errors import Invalid, OffsetOutOfRange, TopicNotFound
from tms.model.position import Position
from tms.spark.source.losses import EXPIRED, GONE, RENEWED, LossRule
from tms.spark.source.offsets import Ends, OffsetRange, SourceTopic
from tms.spark.source.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions, Subscription
from tms.spark.source.splitting import apportioned, cut
from tms.spark.source.topics import Split, TopicReader

_LOOKS_MAX = 5  # at a topic whose life changes each time


def subscribed(topics: TopicReader, subscription: Subscription) -> list[str]:
    """The names of the topics to read now."""
    if subscription.pattern:
        return sorted(topics.topics(subscription.pattern))
    return sorted(subscription.names or subscription.partitions)


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
    for topic in subscribed(topics, subscription):
        try:
            life, ends = _end_of(topics, topic, generations.get(topic, 0))
        except TopicNotFound:
            if must and not subscription.pattern:
                raise
            continue
        wanted = subscription.partitions.get(topic, tuple(ends))
        for partition in wanted:
            if partition not in ends:
                raise Invalid(
                    f"The option assign names partition {partition} of {topic}, which has "
                    f"partitions 0 to {len(ends) - 1}.",
                    field="assign",
                )
        found[life] = {partition: ends[partition] for partition in wanted}
    return found


def _end_of(
    topics: TopicReader, topic: str, generation: int
) -> tuple[SourceTopic, Mapping[int, int]]:
    generation = generation or topics.generation(topic)
    for _ in range(_LOOKS_MAX):
        ends = topics.offsets(topic, Position.latest())
        before, generation = generation, topics.generation(topic)
        if generation == before:
            return SourceTopic(topic, generation), ends
    raise TopicNotFound(
        f"The topic {topic} is deleted and created again and again; start the query when it stays.",
        topic=topic,
    )


def earliest(
    topics: TopicReader, lives: Iterable[SourceTopic], within: Ends
) -> dict[SourceTopic, dict[int, int]]:
    """Where these topics begin."""
    return {life: _at(topics, life, Position.earliest(), within[life]) for life in lives}


def _at(
    topics: TopicReader, life: SourceTopic, position: Position, within: Mapping[int, int]
) -> dict[int, int]:
    found = topics.offsets(life.topic, position)
    return {partition: min(found.get(partition, end), end) for partition, end in within.items()}


def resolved(
    topics: TopicReader, bound: Bound, within: Ends, options: ReadOptions
) -> dict[SourceTopic, dict[int, int]]:
    """The offsets that a bound means in topics that end at `within`. Raises `Invalid` for places
    that do not fit the topics, `OffsetOutOfRange` for offsets that are gone."""
    rule = LossRule(options.fail_on_data_loss)
    found = {}
    _check_topics(bound, within)
    for life, ends in within.items():
        if bound.kind is BoundKind.LATEST:
            found[life] = dict(ends)
        elif bound.kind is BoundKind.EARLIEST:
            found[life] = _at(topics, life, Position.earliest(), ends)
        elif bound.kind is BoundKind.OFFSETS:
            found[life] = _given(topics, life, bound, ends, rule)
        else:
            found[life] = _by_time(topics, life, bound, ends, options)
        if bound.kind is not BoundKind.LATEST and topics.generation(life.topic) != life.generation:
            raise OffsetOutOfRange(
                f"The topic {life.topic} was deleted and created anew while the query began; start "
                "it again.",
                topic=life.topic,
            )
    return found


def _check_topics(bound: Bound, within: Ends) -> None:
    """Check that the topics of an option exist, in their current generation."""
    lives = {life.topic: life for life in within}
    for topic in bound.places:
        if topic not in lives:
            raise Invalid(
                f"The option {bound.option} names the topic {topic}, which is not read.",
                field=bound.option,
            )
        meant, is_now = bound.generations.get(topic), lives[topic].generation
        if meant not in (None, is_now):
            raise Invalid(
                f"The option {bound.option} names generation {meant} of the topic {topic}, but it "
                f"was deleted and created anew: it is generation {is_now}, with other offsets.",
                field=bound.option,
            )


def _places(bound: Bound, life: SourceTopic, ends: Mapping[int, int]) -> Mapping[int, int]:
    """What the option says of a topic: a place for every partition."""
    places = bound.places.get(life.topic, {})
    for partition in sorted(set(ends).symmetric_difference(places)):
        said = "has no place for" if partition in ends else "names"
        raise Invalid(
            f"The option {bound.option} {said} partition {partition} of {life.topic}. Name the "
            "partitions that are read, and no other.",
            field=bound.option,
        )
    return places


def _given(
    topics: TopicReader, life: SourceTopic, bound: Bound, ends: Mapping[int, int], rule: LossRule
) -> dict[int, int]:
    begin = _at(topics, life, Position.earliest(), ends)
    found = {}
    for partition, given in _places(bound, life, ends).items():
        low, high = begin[partition], ends[partition]
        at = {EARLIEST: low, LATEST: high}.get(given, given)
        if at > high:
            raise Invalid(
                f"The option {bound.option} names offset {at} of partition {partition} of "
                f"{life.topic}, which ends at {high}. Name one from {low} to {high}, or -1.",
                field=bound.option,
            )
        if at < low and bound.option.startswith("starting"):
            rule.lost(life.topic, partition, at, low, EXPIRED)
            at = low
        found[partition] = at
    return found


def _by_time(
    topics: TopicReader,
    life: SourceTopic,
    bound: Bound,
    ends: Mapping[int, int],
    options: ReadOptions,
) -> dict[int, int]:
    times = (
        dict.fromkeys(ends, bound.time_ms)
        if bound.kind is BoundKind.TIME
        else _places(bound, life, ends)
    )
    at_time = {
        time_ms: _at(topics, life, Position.time(time_ms), ends) for time_ms in set(times.values())
    }
    found = {partition: at_time[time_ms][partition] for partition, time_ms in times.items()}
    if bound.option.startswith("ending") or options.unmatched_is_latest:
        return found
    for partition, at in sorted(found.items()):
        if at >= ends[partition]:
            raise Invalid(
                f"Partition {partition} of {life.topic} has no message at or after "
                f"{times[partition]} ms, which {bound.option} names. Give an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest to begin at its end.",
                field=bound.option,
            )
    return found


def planned(
    topics: TopicReader, ranges: Sequence[OffsetRange], options: ReadOptions
) -> list[Split]:
    """The splits that read these ranges; what is lost of them is told, and left out."""
    rule = LossRule(options.fail_on_data_loss)
    by_life = [
        (life, list(ranges_)) for life, ranges_ in groupby(ranges, lambda range_: range_.life)
    ]
    lengths = [sum(range_.stop - range_.start for range_ in ranges_) for _, ranges_ in by_life]
    shares = apportioned(lengths, options.min_partitions)
    found: list[Split] = []
    for (life, ranges_), share in zip(by_life, shares, strict=True):
        found += _planned_of(topics, life, ranges_, share, rule)
    return cut(found, options.max_records_per_partition)


def _planned_of(
    topics: TopicReader,
    life: SourceTopic,
    ranges: Sequence[OffsetRange],
    share: int,
    rule: LossRule,
) -> list[Split]:
    """The splits of one topic. Its generation is asked for last: until then it was no later one."""
    try:
        kept = topics.offsets(life.topic, Position.earliest())
        starts = {
            range_.partition: max(range_.start, kept.get(range_.partition, 0)) for range_ in ranges
        }
        wanted = {range_.partition: (starts[range_.partition], range_.stop) for range_ in ranges}
        splits = topics.splits(life.topic, wanted, share)
        generation = topics.generation(life.topic)
    except TopicNotFound:
        generation = 0
    if generation != life.generation:
        for range_ in ranges:
            rule.lost(*_place(range_), range_.stop, RENEWED if generation else GONE)
        return []
    for range_ in ranges:
        if range_.start < starts[range_.partition]:
            rule.lost(*_place(range_), min(range_.stop, starts[range_.partition]), EXPIRED)
    return splits


def _place(range_: OffsetRange) -> tuple[str, int, int]:
    return range_.life.topic, range_.partition, range_.start
