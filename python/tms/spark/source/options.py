"""The options of the data source `tms` for reading: what each may be, and what was meant.

Names and meanings are those of Spark's Kafka source, so that its programs run here; beside them
stand TMS's own, which begin with `tms.`, and `source`.

* Names are compared without case: Spark writes them in lower case. Errors use the name as it is
  documented.
* Nothing is ignored: an option that is not known, or means nothing in this kind of query, is an
  error that says what to do.
* Where several say where to begin, the first of these holds: startingTimestamp,
  startingOffsetsByTimestamp, startingOffsets; the same for the end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tms.errors import Invalid, TMSError
from tms.model.ids import TIME_MS_MAX
from tms.model.position import OFFSET_MAX
from tms.model.topic import PARTITIONS_MAX, TopicName
from tms.spark.naming import Names, token_of
from tms.spark.source.offsets import Places, parse_key
from tms.spark.source.values import (
    as_count,
    as_flag,
    as_millis,
    as_time,
    as_whole,
    read_json,
    refuse,
)

LATEST, EARLIEST = -1, -2  # in place of an offset, as in Kafka
MAX_TRIGGER_DELAY = "15m"

_SELECTING = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_OF_BATCHES = (*_ENDING, "pushFilters")
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
NAMES = (
    *_SELECTING,
    *_STARTING,
    "startingOffsetsByTimestampStrategy",
    *_OF_BATCHES,
    *_OF_STREAMS,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeMessageId",
    "source",
    "tms.url",
    "tms.token",
    "tms.store",
)
_ELSEWHERE = {
    "topic": "It is an option of writing; to read, name the topic with `subscribe`.",
    "path": "Call load() without a path, and name the topic with `subscribe`.",
    "groupidprefix": "Reading moves no positions of groups here; leave it out.",
    "kafka.bootstrap.servers": "The service's address is `tms.url`, e.g. http://localhost:7070.",
    "kafka.group.id": "Reading moves no positions of groups here; leave it out.",
    "checkpointlocation": "It is an option of the query: give it to `writeStream`.",
}
_NAMES = Names("reading", NAMES, _ELSEWHERE)


class BoundKind(StrEnum):
    """The ways to say where reading begins or ends."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"  # one for each partition
    TIME = "time"  # one for all partitions
    TIMES = "times"  # one for each partition


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends, and by which option. `places` are offsets or ms since 1970, by
    topic and partition; `generations` are of topics of which a certain life is meant."""

    option: str
    kind: BoundKind
    places: Places = field(default_factory=dict)
    time_ms: int = 0
    generations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics are read: those named, those whose name a pattern matches, or some partitions of
    those named. Exactly one of them is not empty."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """Where the topics are: the service at `url`, or the tables in HBase that `store` names."""

    url: str = ""
    token: str = field(default="", repr=False)
    store: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a query. None is "no limit"."""

    place: TopicPlace
    subscription: Subscription
    starting: Bound
    ending: Bound
    unmatched_is_latest: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_message_id: bool
    push_filters: bool


def read_options(options: Mapping[str, str], streaming: bool | None = None) -> ReadOptions:
    """What the options mean for a stream, for a batch, or (None) as far as both agree. Raises
    `Invalid`, whose detail `field` is the option."""
    got = _NAMES.recognized(options)
    _check_kind_of_query(got, streaming)
    least, most = (as_count(got, name, None) for name in _OF_STREAMS[1::-1])
    if least is not None and most is not None and least > most:
        raise refuse(
            "minOffsetsPerTrigger",
            got["minOffsetsPerTrigger"],
            f"at most maxOffsetsPerTrigger, which is {most}",
        )
    subscription = _subscription(got)
    strategy = got.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise refuse("startingOffsetsByTimestampStrategy", strategy, "`error` or `latest`")
    return ReadOptions(
        _place(got),
        subscription,
        _bound(got, _STARTING, subscription, streaming),
        _bound(got, _ENDING, subscription, streaming),
        strategy == "latest",
        most,
        least,
        as_millis(got, "maxTriggerDelay", MAX_TRIGGER_DELAY),
        as_count(got, "minPartitions", 1) or 1,
        as_count(got, "maxRecordsPerPartition", None),
        as_flag(got, "failOnDataLoss", True),
        as_flag(got, "includeHeaders", False),
        as_flag(got, "includeMessageId", False),
        as_flag(got, "pushFilters", False),
    )


def _check_kind_of_query(got: Mapping[str, str], streaming: bool | None) -> None:
    if streaming is None:
        return
    for name in _OF_BATCHES if streaming else _OF_STREAMS:
        if name in got:
            here, there = ("streams", "batch queries")[:: 1 if streaming else -1]
            raise Invalid(
                f"The option {name} has a meaning in {there} only; leave it out of {here}.",
                field=name,
            )


def _place(got: Mapping[str, str]) -> TopicPlace:
    source = got.get("source", "service").lower()
    if source not in ("service", "hbase"):
        raise refuse("source", got["source"], "`service` or `hbase`")
    needed, other = ("tms.url", "tms.store")[:: 1 if source == "service" else -1]
    if other in got:
        does = "goes with source=hbase" if other == "tms.store" else "goes with source=service"
        raise Invalid(
            f"The option {other} {does}, and the source is {source}. Give {needed}, or another "
            "source.",
            field=other,
        )
    address = got.get(needed, "")
    if not address:
        example = "http://localhost:7070" if source == "service" else "hbase://localhost:9090"
        raise Invalid(
            f"The option {needed} is missing: where the topics are, e.g. {example}.", field=needed
        )
    if source == "hbase":
        if not address.startswith("hbase://"):
            raise refuse("tms.store", address, "the Thrift server of HBase: hbase://HOST:PORT")
        if got.get("tms.token"):
            raise Invalid("The option tms.token goes with source=service.", field="tms.token")
        return TopicPlace(store=address)
    return TopicPlace(url=_service_url(address), token=token_of(got))


def _service_url(url: str) -> str:
    if url.startswith("hbase://"):
        raise refuse("tms.url", url, "a service; for HBase give source=hbase and tms.store")
    if not url.startswith(("http://", "https://")):
        raise refuse(
            "tms.url",
            url,
            "the URL of a service: http://HOST:PORT or https://HOST:PORT. Executors cannot open a "
            "data directory, because one process owns it: start `tms serve` on it",
        )
    return url


def _subscription(got: Mapping[str, str]) -> Subscription:
    chosen = [name for name in _SELECTING if name in got]
    if len(chosen) != 1:
        many = "none is" if not chosen else f"{' and '.join(chosen)} are"
        raise Invalid(
            f"Exactly one of subscribe, subscribePattern and assign says what to read; {many} "
            "given.",
            field=chosen[-1] if chosen else "subscribe",
        )
    text = got[chosen[0]]
    if chosen == ["subscribe"]:
        names = [_topic("subscribe", name.strip()) for name in text.split(",") if name.strip()]
        if not names:
            raise refuse("subscribe", text, "names of topics, separated by commas")
        return Subscription(names=tuple(dict.fromkeys(names)))
    if chosen == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as exc:
            raise refuse("subscribePattern", text, f"a regular expression ({exc})") from exc
        if not text:
            raise refuse("subscribePattern", text, "a regular expression")
        return Subscription(pattern=text)
    return Subscription(partitions=_assigned(text))


def _topic(option: str, name: str) -> str:
    try:
        return str(TopicName.parse(name))
    except TMSError as error:
        raise Invalid(f"The option {option}: {error.message}", field=option) from error


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    meant = 'partitions by topic, e.g. {"flights": [0, 1]}'
    assigned: dict[str, tuple[int, ...]] = {}
    for name, listed in read_json("assign", text, meant).items():
        if not isinstance(listed, list) or not listed:
            raise refuse("assign", text, meant)
        partitions = [
            as_whole("assign", text, partition, 0, PARTITIONS_MAX - 1) for partition in listed
        ]
        if len(set(partitions)) != len(partitions):
            raise refuse("assign", text, f"each partition of {name} once")
        assigned[_topic("assign", name)] = tuple(sorted(partitions))
    if not assigned:
        raise refuse("assign", text, meant)
    return assigned


def _bound(
    got: Mapping[str, str],
    options: tuple[str, str, str],
    subscription: Subscription,
    streaming: bool | None,
) -> Bound:
    """Where reading begins or ends. `options` are those that say it, the strongest first."""
    of_one_time, of_times, of_offsets = options
    starting = of_offsets == "startingOffsets"
    if of_one_time in got:
        return Bound(of_one_time, BoundKind.TIME, time_ms=as_time(got, of_one_time))
    if of_times in got:
        places, generations = _places(got, of_times, subscription, 0)
        return Bound(of_times, BoundKind.TIMES, places, 0, generations)
    text = got.get(of_offsets)
    if text is None:
        forward = bool(streaming) or not starting
        return Bound(of_offsets, BoundKind.LATEST if forward else BoundKind.EARLIEST)
    if text.lower() in ("earliest", "latest"):
        bound = Bound(of_offsets, BoundKind(text.lower()))
        used = {LATEST if bound.kind is BoundKind.LATEST else EARLIEST}
    else:
        places, generations = _places(got, of_offsets, subscription, EARLIEST)
        bound = Bound(of_offsets, BoundKind.OFFSETS, places, 0, generations)
        used = {at for of_topic in bound.places.values() for at in of_topic.values()}
    if starting and streaming is False and LATEST in used:
        raise refuse(of_offsets, text, "not `latest` (-1): a batch would have nothing to read")
    if not starting and EARLIEST in used:
        raise refuse(of_offsets, text, "not `earliest` (-2): there would be nothing to read")
    return bound


def _places(
    got: Mapping[str, str], option: str, subscription: Subscription, least: int
) -> tuple[dict[str, dict[int, int]], dict[str, int]]:
    """Offsets or times by topic and partition, and the generations that were named."""
    text = got[option]
    what, most = ("offsets", OFFSET_MAX) if least else ("times in ms since 1970", TIME_MS_MAX)
    meant = f'{what} by topic and partition, e.g. {{"flights": {{"0": 23, "1": 42}}}}'
    if least:
        meant = f"`earliest`, `latest`, or {meant}"
    places: dict[str, dict[int, int]] = {}
    generations = {}
    for key, by_partition in read_json(option, text, meant).items():
        if not isinstance(by_partition, dict) or not by_partition:
            raise refuse(option, text, meant)
        life = parse_key(key)
        if life is None:
            raise refuse(option, text, f"names of topics, unlike {key!r}")
        topic = _topic(option, life.topic)
        if topic in places:
            raise refuse(option, text, f"the topic {topic} once")
        if "#" in key:
            generations[topic] = life.generation
        places[topic] = {
            _partition(option, text, partition): as_whole(option, text, at, least, most)
            for partition, at in by_partition.items()
        }
    _check_topics(option, places, subscription)
    return places, generations


def _partition(option: str, text: str, partition: Any) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,3}", partition) or int(partition) >= PARTITIONS_MAX:
        raise refuse(option, text, f"partitions from 0 to {PARTITIONS_MAX - 1}")
    return int(partition)


def _check_topics(option: str, places: Places, subscription: Subscription) -> None:
    """All partitions that are read must be there: one that was forgotten would begin somewhere.
    What only the topics themselves can tell is checked when they are looked at."""
    if subscription.pattern:
        return
    read = {*subscription.names, *subscription.partitions}
    for topic in sorted(read.symmetric_difference(places)):
        if topic in read:
            raise Invalid(f"The option {option} names no place for {topic}.", field=option)
        raise Invalid(f"The option {option} names {topic}, which is not read.", field=option)
    for topic, assigned in subscription.partitions.items():
        for partition in sorted(set(assigned).symmetric_difference(places[topic])):
            where = f"partition {partition} of {topic}"
            if partition in assigned:
                raise Invalid(f"The option {option} names no place for {where}.", field=option)
            raise Invalid(
                f"The option {option} names {where}, which is not assigned.", field=option
            )
