"""Options of the data source `tms` for reading: the meaning of each, and every mistake."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from tms.errors import Invalid
from tms.runtime.tls import ClientTls
from tms.spark.rows import WantedColumns
from tms.spark.sink.options import write_options
from tms.spark.source.options import (
    EARLIEST,
    LATEST,
    NAMES,
    Bound,
    BoundKind,
    Subscription,
    TopicPlace,
    read_options,
)

URL = "http://localhost:7070"
GIVEN = {"tms.url": URL, "subscribe": "flights"}


def given(**more: str) -> dict[str, str]:
    """Valid options, with others; two underscores in names become a dot."""
    return GIVEN | {name.replace("__", "."): value for name, value in more.items()}


def test_a_topic_and_an_address_are_enough() -> None:
    options = read_options(GIVEN, streaming=False)
    assert options.place == TopicPlace(url=URL)
    assert options.subscription == Subscription(names=("flights",))
    assert options.starting == Bound("startingOffsets", BoundKind.EARLIEST)
    assert options.ending == Bound("endingOffsets", BoundKind.LATEST)
    assert options.fail_on_data_loss
    assert options.columns == WantedColumns(headers=False, message_id=False)
    assert not options.push_filters
    assert options.max_offsets_per_trigger is None
    assert options.min_offsets_per_trigger is None
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.min_partitions == 1
    assert options.max_records_per_partition is None


def test_a_stream_begins_at_the_latest_message() -> None:
    assert read_options(GIVEN, streaming=True).starting.kind is BoundKind.LATEST


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_names_of_options_are_compared_without_case(name: str, change: Any) -> None:
    unknown = "has no option"
    try:
        read_options({change(name): "1"})
    except Invalid as error:
        assert unknown not in error.message
        assert error.details["field"] in NAMES


@pytest.mark.parametrize(
    "option, value, field, meant",
    [
        ("subscribe", "a, default:b ,a,ns:c", "names", ("a", "b", "ns:c")),
        ("subscribePattern", "fl.*", "pattern", "fl.*"),
        ("assign", '{"a": [3, 0], "ns:b": [1]}', "partitions", {"a": (0, 3), "ns:b": (1,)}),
    ],
)
def test_what_is_read_is_said_in_one_of_three_ways(
    option: str, value: str, field: str, meant: object
) -> None:
    options = read_options({"tms.url": URL, option: value})
    assert getattr(options.subscription, field) == meant
    assert options.subscription == Subscription(**{field: meant})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more, streaming, bound",
    [
        ({"startingOffsets": "EARLIEST"}, True, Bound("startingOffsets", BoundKind.EARLIEST)),
        ({"startingOffsets": "latest"}, True, Bound("startingOffsets", BoundKind.LATEST)),
        (
            {"startingOffsets": '{"flights": {"0": 23, "1": -2, "2": -1}}'},
            True,
            Bound(
                "startingOffsets", BoundKind.OFFSETS, {"flights": {0: 23, 1: EARLIEST, 2: LATEST}}
            ),
        ),
        (
            {"startingOffsets": '{"flights#2": {"0": 23}}'},
            False,
            Bound("startingOffsets", BoundKind.OFFSETS, {"flights": {0: 23}}, 0, {"flights": 2}),
        ),
        (
            {"startingTimestamp": "1000"},
            False,
            Bound("startingTimestamp", BoundKind.TIME, {}, 1000),
        ),
        (
            {"startingOffsetsByTimestamp": '{"flights": {"0": 1000}}'},
            False,
            Bound("startingOffsetsByTimestamp", BoundKind.TIMES, {"flights": {0: 1000}}),
        ),
    ],
)
def test_where_reading_begins(more: Mapping[str, str], streaming: bool, bound: Bound) -> None:
    assert read_options(GIVEN | more, streaming).starting == bound


@pytest.mark.parametrize(
    "more, bound",
    [
        ({"endingOffsets": "latest"}, Bound("endingOffsets", BoundKind.LATEST)),
        (
            {"endingOffsets": '{"flights": {"0": 23, "1": -1}}'},
            Bound("endingOffsets", BoundKind.OFFSETS, {"flights": {0: 23, 1: LATEST}}),
        ),
        ({"endingTimestamp": "1000"}, Bound("endingTimestamp", BoundKind.TIME, {}, 1000)),
        (
            {"endingOffsetsByTimestamp": '{"flights": {"0": 1000}}'},
            Bound("endingOffsetsByTimestamp", BoundKind.TIMES, {"flights": {0: 1000}}),
        ),
    ],
)
def test_where_reading_ends(more: Mapping[str, str], bound: Bound) -> None:
    assert read_options(GIVEN | more, streaming=False).ending == bound


def test_one_time_is_stronger_than_times_of_partitions_and_those_than_offsets() -> None:
    offsets = {"startingOffsets": "earliest"}
    times = {"startingOffsetsByTimestamp": '{"flights": {"0": 1}}'}
    one = {"startingTimestamp": "1"}
    assert read_options(GIVEN | offsets | times | one).starting.kind is BoundKind.TIME
    assert read_options(GIVEN | offsets | times).starting.kind is BoundKind.TIMES
    assert read_options(GIVEN | offsets).starting.kind is BoundKind.EARLIEST


@pytest.mark.parametrize(
    "text, ms",
    [("250", 250), ("500ms", 500), ("30s", 30_000), ("2 min", 120_000), ("1H", 3_600_000)],
)
def test_a_delay_is_a_number_with_a_unit(text: str, ms: int) -> None:
    assert read_options(given(maxTriggerDelay=text)).max_trigger_delay_ms == ms


def test_numbers_and_flags_are_taken() -> None:
    options = read_options(
        given(
            maxOffsetsPerTrigger="100",
            minOffsetsPerTrigger="100",
            minPartitions="7",
            maxRecordsPerPartition="9",
            failOnDataLoss="False",
            includeHeaders="TRUE",
            includeMessageId="true",
            startingOffsetsByTimestampStrategy="LATEST",
            tms__token="s3cret",
        ),
        streaming=True,
    )
    assert options.max_offsets_per_trigger == options.min_offsets_per_trigger == 100
    assert (options.min_partitions, options.max_records_per_partition) == (7, 9)
    assert not options.fail_on_data_loss
    assert options.columns == WantedColumns(headers=True, message_id=True)
    assert options.unmatched_is_latest
    assert options.place.token == "s3cret"


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in repr(read_options(given(tms__token="s3cret")))


def test_hbase_is_named_by_its_thrift_server() -> None:
    options = read_options(
        {"source": "HBase", "tms.store": "hbase://localhost:9090", "subscribe": "flights"}
    )
    assert options.place == TopicPlace(store="hbase://localhost:9090")


MISTAKES: list[tuple[dict[str, str], str, str]] = [
    # what reads
    ({"tms.url": URL}, "subscribe", "none is given"),
    (given(assign='{"flights": [0]}'), "assign", "subscribe and assign are given"),
    (given(subscribe=" , "), "subscribe", "names of topics"),
    (given(subscribe="a b"), "subscribe", "'a b'"),
    ({"tms.url": URL, "subscribePattern": "(a"}, "subscribePattern", "regular expression"),
    ({"tms.url": URL, "subscribePattern": ""}, "subscribePattern", "regular expression"),
    ({"tms.url": URL, "assign": "flights"}, "assign", '{"flights": [0, 1]}'),
    ({"tms.url": URL, "assign": "{}"}, "assign", "partitions by topic"),
    ({"tms.url": URL, "assign": "[]"}, "assign", "partitions by topic"),
    ({"tms.url": URL, "assign": '{"a": []}'}, "assign", "partitions by topic"),
    ({"tms.url": URL, "assign": '{"a": [-1]}'}, "assign", "-1"),
    ({"tms.url": URL, "assign": '{"a": [true]}'}, "assign", "bool"),
    ({"tms.url": URL, "assign": '{"a": [1, 1]}'}, "assign", "each partition of a once"),
    ({"tms.url": URL, "assign": '{"a": [1], "a": [2]}'}, "assign", "twice"),
    # where
    ({"subscribe": "a"}, "tms.url", "http://localhost:7070"),
    (given(tms__url="data/"), "tms.url", "tms serve"),
    (given(tms__url="/var/tms"), "tms.url", "tms serve"),
    (given(tms__url="hbase://localhost"), "tms.url", "tms.store"),
    (given(source="disk"), "source", "`service` or `hbase`"),
    (given(source="hbase"), "tms.url", "goes with source=service"),
    (given(tms__store="hbase://localhost"), "tms.store", "goes with source=hbase"),
    ({"source": "hbase", "subscribe": "a"}, "tms.store", "hbase://localhost:9090"),
    ({"source": "hbase", "subscribe": "a", "tms.store": "x"}, "tms.store", "hbase://HOST:PORT"),
    (
        {"source": "hbase", "subscribe": "a", "tms.store": "hbase://h", "tms.token": "t"},
        "tms.token",
        "source=service",
    ),
    (given(tms__token="a\nb"), "tms.token", "ASCII"),
    # from where to where
    (given(startingOffsets="first"), "startingOffsets", "`earliest`, `latest`"),
    (given(startingOffsets='{"flights": {"0": -3}}'), "startingOffsets", "-3"),
    (given(startingOffsets='{"flights": {"0": 1.5}}'), "startingOffsets", "1.5"),
    (given(startingOffsets='{"flights": {"0": true}}'), "startingOffsets", "bool"),
    (given(startingOffsets='{"flights": {"00": 1}}'), "startingOffsets", "by topic and partition"),
    (given(startingOffsets='{"flights": {"1024": 1}}'), "startingOffsets", "<= 1023"),
    (given(startingOffsets='{"flights": {}}'), "startingOffsets", "by topic and partition"),
    (given(startingOffsets='{"flights": 5}'), "startingOffsets", "by topic and partition"),
    (given(startingOffsets='{"flights#from": {"0": 1}}'), "startingOffsets", "flights#from"),
    (
        given(startingOffsets='{"flights": {"0": 1}, "flights#2": {"0": 1}}'),
        "startingOffsets",
        "flights once",
    ),
    (given(startingTimestamp="yesterday"), "startingTimestamp", "ms since 1970"),
    (given(startingTimestamp="-1"), "startingTimestamp", "ms since 1970"),
    (given(startingTimestamp="999999999999999"), "startingTimestamp", "ms since 1970"),
    (
        given(startingOffsetsByTimestamp='{"flights": {"0": -2}}'),
        "startingOffsetsByTimestamp",
        "-2",
    ),
    (
        given(startingOffsetsByTimestampStrategy="earliest"),
        "startingOffsetsByTimestampStrategy",
        "`error` or `latest`",
    ),
    (given(endingOffsets="earliest"), "endingOffsets", "nothing to read"),
    (given(endingOffsets='{"flights": {"0": -2}}'), "endingOffsets", "nothing to read"),
    # how much
    (given(maxOffsetsPerTrigger="0"), "maxOffsetsPerTrigger", "at least 1"),
    (given(maxOffsetsPerTrigger="1e3"), "maxOffsetsPerTrigger", "at least 1"),
    (given(minOffsetsPerTrigger="-5"), "minOffsetsPerTrigger", "at least 1"),
    (
        given(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4"),
        "minOffsetsPerTrigger",
        "at most maxOffsetsPerTrigger",
    ),
    (given(maxTriggerDelay="soon"), "maxTriggerDelay", "duration"),
    (given(maxTriggerDelay="5y"), "maxTriggerDelay", "duration"),
    (given(minPartitions="0"), "minPartitions", "at least 1"),
    (given(maxRecordsPerPartition="many"), "maxRecordsPerPartition", "at least 1"),
    (given(failOnDataLoss="no"), "failOnDataLoss", "`true` or `false`"),
    (given(includeHeaders="1"), "includeHeaders", "`true` or `false`"),
    (given(pushFilters="all"), "pushFilters", "`true` or `false`"),
    (given(includeMessageId=""), "includeMessageId", "`true` or `false`"),
    # unknown ones
    (given(startingOffset="latest"), "startingOffset", "Did you mean 'startingOffsets'?"),
    (given(includeheader="true"), "includeheader", "Did you mean 'includeHeaders'?"),
    (given(url=URL), "url", "Did you mean 'tms.url'?"),
    (given(frobnicate="1"), "frobnicate", "It has subscribe, "),
    (given(topic="flights"), "topic", "option of writing"),
    (given(path="flights"), "path", "`subscribe`"),
    (given(groupIdPrefix="x"), "groupIdPrefix", "moves no positions"),
    (given(kafka__bootstrap__servers="x"), "kafka.bootstrap.servers", "`tms.url`"),
    (given(kafka__max__poll__records="x"), "kafka.max.poll.records", "leave it out"),
]


@pytest.mark.parametrize("options, field, said", MISTAKES)
def test_a_mistake_names_its_option_and_says_what_to_do(
    options: dict[str, str], field: str, said: str
) -> None:
    with pytest.raises(Invalid) as caught:
        read_options(options)
    assert caught.value.details["field"] == field
    assert field in caught.value.message
    assert said in caught.value.message
    assert len(caught.value.message) < 1_000


@pytest.mark.parametrize(
    "more, streaming, field, said",
    [
        ({"startingOffsets": "latest"}, False, "startingOffsets", "cannot be `latest`"),
        (
            {"startingOffsets": '{"flights": {"0": -1}}'},
            False,
            "startingOffsets",
            "cannot be `latest`",
        ),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger", "in streams only"),
        ({"minOffsetsPerTrigger": "5"}, False, "minOffsetsPerTrigger", "in streams only"),
        ({"maxTriggerDelay": "5s"}, False, "maxTriggerDelay", "in streams only"),
        ({"endingOffsets": "latest"}, True, "endingOffsets", "in batch queries only"),
        ({"pushFilters": "true"}, True, "pushFilters", "in batch queries only"),
        ({"endingTimestamp": "5"}, True, "endingTimestamp", "in batch queries only"),
        ({"endingOffsetsByTimestamp": "{}"}, True, "endingOffsetsByTimestamp", "in batch queries"),
    ],
)
def test_an_option_of_the_other_kind_of_query_is_a_mistake(
    more: dict[str, str], streaming: bool, field: str, said: str
) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        read_options(GIVEN | more, streaming)
    assert caught.value.details["field"] == field


def test_a_long_value_is_cut_in_its_error() -> None:
    with pytest.raises(Invalid) as caught:
        read_options(given(startingOffsets="y" * 10_000))
    assert len(caught.value.message) < 500


def test_files_of_tls_go_to_tasks_as_paths_and_come_from_the_environment_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = given(tms__url="https://a", tms__tls__ca="c", tms__tls__cert="d", tms__tls__key="e")
    place = read_options(asked).place
    assert place.tls == ClientTls("c", "d", "e")
    assert pickle.loads(pickle.dumps(place)) == place
    monkeypatch.setenv("TMS_CA", "x")
    assert read_options(given(tms__url="https://a")).place.tls == ClientTls("x")
    to = {"tms.url": "https://a", "topic": "t", "tms.tls.cert": "d"}
    assert write_options(to).tls == ClientTls("x", "d")
    with pytest.raises(Invalid, match=r"tms\.tls\.key"):
        write_options(to | {"tms.tls.cert": "", "tms.tls.key": "e"})
