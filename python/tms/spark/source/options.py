"""The options of the data source `tms` for reading: their allowed values and their meaning.

Names and meanings are those of Spark's Kafka source, so that its programs run here; beside them
stand TMS's own, which begin with `tms.`, and `source`.

* Of several options for the begin, the first of these holds: startingTimestamp,
  startingOffsetsByTimestamp, startingOffsets; likewise for the end.
* Planning checks that the named topics and partitions exist, because it looks at the topics.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Annotated, Any

from msgspec import Meta

from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX
from tms.model.position import OFFSET_MAX
from tms.model.topic import PARTITIONS_MAX
from tms.runtime.decoding import convert
from tms.runtime.tls import ClientTls
from tms.spark.options import (
    BATCHES,
    STREAMS,
    TLS_OPTIONS,
    TOKEN_OPTIONS,
    Option,
    OptionTable,
    choice,
    duration_ms,
    flag,
    outage_s,
    refuse,
    service_url,
    tls_of,
    token_of,
    topic_name,
    whole,
)
from tms.spark.rows import WantedColumns
from tms.spark.source.offsets import Places, parse_key

LATEST, EARLIEST = -1, -2  # in place of an offset, as in Kafka
MAX_TRIGGER_DELAY_MS = 15 * 60_000
COUNT_MAX = 2**63 - 1
BATCH_OUTAGE_S = 30.0  # a batch query fails then, a stream waits

_Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
_ASSIGNED = Annotated[
    dict[str, Annotated[list[_Partition], Meta(min_length=1)]], Meta(min_length=1)
]
_Offset = Annotated[int, Meta(ge=EARLIEST, le=OFFSET_MAX)]
_OFFSETS = dict[str, Annotated[dict[_Partition, _Offset], Meta(min_length=1)]]
_Time = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
_TIMES = dict[str, Annotated[dict[_Partition, _Time], Meta(min_length=1)]]


class BoundKind(StrEnum):
    """The ways to say where reading begins or ends."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"  # one for each partition
    TIME = "time"  # one for all partitions
    TIMES = "times"  # one for each partition


@dataclass(frozen=True, slots=True)
class Bound:
    """The begin or the end of reading, and its option. `places` are offsets or ms since 1970, by
    topic and partition; `generations` are of topics named with their generation."""

    option: str
    kind: BoundKind
    places: Places = field(default_factory=dict)
    time_ms: int = 0
    generations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read: named ones, those whose name a pattern matches, or some partitions of
    named ones. Exactly one of the three is not empty."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The place of the topics: the service at `url`, or the tables in HBase that `store` names."""

    url: str = ""
    token: str = field(default="", repr=False)
    store: str = ""
    tls: ClientTls = field(default_factory=ClientTls)
    outage_s: float = BATCH_OUTAGE_S  # for which the service may be away


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
    columns: WantedColumns
    push_filters: bool


def read_options(options: Mapping[str, str], streaming: bool | None = None) -> ReadOptions:
    """The meaning of the options for a stream, for a batch, or (None) for both as far as they
    agree. Raises `Invalid`, whose detail `field` is the option."""
    values = _OPTIONS.read(options, {True: STREAMS, False: BATCHES, None: ""}[streaming])
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise refuse(
            "minOffsetsPerTrigger", str(least), f"at most maxOffsetsPerTrigger, which is {most}"
        )
    subscription = _subscription(values)
    starting = _bound(values, _STARTING, BoundKind.LATEST if streaming else BoundKind.EARLIEST)
    ending = _bound(values, _ENDING, BoundKind.LATEST)
    _refuse_empty(ending, BoundKind.EARLIEST, EARLIEST)
    if streaming is False:
        _refuse_empty(starting, BoundKind.LATEST, LATEST)
    return ReadOptions(
        _place(values, streaming),
        subscription,
        starting,
        ending,
        values["startingOffsetsByTimestampStrategy"],
        most,
        least,
        values["maxTriggerDelay"],
        values["minPartitions"],
        values["maxRecordsPerPartition"],
        values["failOnDataLoss"],
        WantedColumns(
            values["includeHeaders"], values["includeMessageId"], values["includeEventTime"]
        ),
        values["pushFilters"],
    )


def _place(values: Mapping[str, Any], streaming: bool | None) -> TopicPlace:
    source = values["source"]
    needed, other = ("tms.url", "tms.store") if source == "service" else ("tms.store", "tms.url")
    if values[other] is not None:
        does = "goes with source=hbase" if other == "tms.store" else "goes with source=service"
        raise Invalid(
            f"The option {other} {does}, and the source is {source}. Give {needed}, or another "
            "source.",
            field=other,
        )
    if values[needed] is None:
        example = "http://localhost:7070" if source == "service" else "hbase://localhost:9090"
        raise Invalid(
            f"The option {needed} is missing: where the topics are, e.g. {example}.", field=needed
        )
    for option in TOKEN_OPTIONS:
        if source == "hbase" and values[option.name]:
            name = option.name
            raise Invalid(f"The option {name} goes with source=service.", field=name)
    if source == "hbase" and values["tms.outage"] is not None:
        raise Invalid("The option tms.outage goes with source=service.", field="tms.outage")
    url, store = values["tms.url"] or "", values["tms.store"] or ""
    away_s = values["tms.outage"]
    if away_s is None:
        away_s = inf if streaming else BATCH_OUTAGE_S
    return TopicPlace(url, token_of(values), store, tls_of(values), away_s)


def _store(option: str, text: str) -> str:
    if not text.startswith(("hbase://", "hbases://")):
        raise refuse(option, text, "the Thrift server of HBase: hbase://HOST:PORT")
    return text


def _subscription(values: Mapping[str, Any]) -> Subscription:
    chosen = [name for name in _SELECTING if values[name] is not None]
    if len(chosen) != 1:
        many = "none is" if not chosen else f"{' and '.join(chosen)} are"
        raise Invalid(
            f"Exactly one of subscribe, subscribePattern and assign says what to read; {many} "
            "given.",
            field=chosen[-1] if chosen else "subscribe",
        )
    selected: Subscription = values[chosen[0]]
    return selected


def _subscribed(option: str, text: str) -> Subscription:
    names = [topic_name(option, name.strip()) for name in text.split(",") if name.strip()]
    if not names:
        raise refuse(option, text, "names of topics, separated by commas")
    return Subscription(names=tuple(dict.fromkeys(names)))


def _matching(option: str, text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as exc:
        raise refuse(option, text, f"a regular expression ({exc})") from exc
    if not text:
        raise refuse(option, text, "a regular expression")
    return Subscription(pattern=text)


def _assigned(option: str, text: str) -> Subscription:
    meant = 'partitions by topic, e.g. {"flights": [0, 1]}'
    assigned = {}
    for name, partitions in _json(option, text, _ASSIGNED, meant).items():
        if len(set(partitions)) != len(partitions):
            raise refuse(option, text, f"each partition of {name} once")
        assigned[topic_name(option, name)] = tuple(sorted(partitions))
    return Subscription(partitions=assigned)


def _bound(values: Mapping[str, Any], options: tuple[str, ...], default: BoundKind) -> Bound:
    """The begin or the end of reading. `options` are those that define it, the strongest first."""
    given = [values[option] for option in options if values[option] is not None]
    bound: Bound = given[0] if given else Bound(options[-1], default)
    return bound


def _refuse_empty(bound: Bound, kind: BoundKind, offset: int) -> None:
    """Raises `Invalid` if a partition would be read from its end, or up to its beginning."""
    if bound.kind is kind or any(offset in places.values() for places in bound.places.values()):
        raise Invalid(
            f"The option {bound.option} cannot be `{kind}` ({offset}): there would be nothing to "
            "read.",
            field=bound.option,
        )


def _at_time(option: str, text: str) -> Bound:
    time_ms = whole(0, TIME_MS_MAX, "a time in ms since 1970-01-01T00:00Z")(option, text)
    return Bound(option, BoundKind.TIME, time_ms=time_ms)


def _at_times(option: str, text: str) -> Bound:
    return _at_places(option, text, BoundKind.TIMES, _TIMES, "times in ms since 1970")


def _at_offsets(option: str, text: str) -> Bound:
    if text.lower() in ("earliest", "latest"):
        return Bound(option, BoundKind(text.lower()))
    return _at_places(option, text, BoundKind.OFFSETS, _OFFSETS, "`earliest`, `latest`, or offsets")


def _at_places(option: str, text: str, kind: BoundKind, form: Any, what: str) -> Bound:
    """Offsets or times by topic and partition, and the generations that were named."""
    meant = f'{what} by topic and partition, e.g. {{"flights": {{"0": 23, "1": 42}}}}'
    places: dict[str, dict[int, int]] = {}
    generations = {}
    for key, of_topic in _json(option, text, form, meant).items():
        source = parse_key(key)
        if source is None:
            raise refuse(option, text, f"names of topics, unlike {key!r}")
        topic = topic_name(option, source.name)
        if topic in places:
            raise refuse(option, text, f"the topic {topic} once")
        if "#" in key:
            generations[topic] = source.generation
        places[topic] = of_topic
    return Bound(option, kind, places, 0, generations)


def _json(option: str, text: str, form: Any, meant: str) -> Any:
    """A JSON object of this form; a name that is in it twice is an error."""
    try:
        return convert(json.loads(text, object_pairs_hook=_once), form, str_keys=True)
    except (ValueError, RecursionError) as exc:
        raise refuse(option, text, f"{meant} ({exc})") from exc


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is in it twice")
    return found


_SELECTING = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_count = whole(1, COUNT_MAX, "a whole number, at least 1")
_OPTIONS = OptionTable(
    "reading",
    [
        Option("subscribe", _subscribed),
        Option("subscribePattern", _matching),
        Option("assign", _assigned),
        Option("startingTimestamp", _at_time),
        Option("startingOffsetsByTimestamp", _at_times),
        Option("startingOffsets", _at_offsets),
        Option(
            "startingOffsetsByTimestampStrategy", choice({"error": False, "latest": True}), False
        ),
        Option("endingTimestamp", _at_time, only=BATCHES),
        Option("endingOffsetsByTimestamp", _at_times, only=BATCHES),
        Option("endingOffsets", _at_offsets, only=BATCHES),
        Option("pushFilters", flag, False, BATCHES),
        Option("maxOffsetsPerTrigger", _count, only=STREAMS),
        Option("minOffsetsPerTrigger", _count, only=STREAMS),
        Option("maxTriggerDelay", duration_ms, MAX_TRIGGER_DELAY_MS, STREAMS),
        Option("minPartitions", _count, 1),
        Option("maxRecordsPerPartition", _count),
        Option("failOnDataLoss", flag, True),
        Option("includeHeaders", flag, False),
        Option("includeMessageId", flag, False),
        Option("includeEventTime", flag, False),
        Option("source", choice({"service": "service", "hbase": "hbase"}), "service"),
        Option("tms.url", service_url),
        *TOKEN_OPTIONS,
        *TLS_OPTIONS,
        Option("tms.store", _store),
        Option("tms.outage", outage_s),
    ],
    {
        "topic": "It is an option of writing; to read, name the topic with `subscribe`.",
        "path": "Call load() without a path, and name the topic with `subscribe`.",
        "groupidprefix": "Reading moves no positions of groups here; leave it out.",
        "kafka.bootstrap.servers": "The service's address is `tms.url`, e.g. http://localhost:7070.",
        "kafka.group.id": "Reading moves no positions of groups here; leave it out.",
        "checkpointlocation": "It is an option of the query: give it to `writeStream`.",
    },
)
NAMES = _OPTIONS.names
