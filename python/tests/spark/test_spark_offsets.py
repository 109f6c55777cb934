"""Offsets of a stream: their form in the checkpoint, the end of a batch, and its rows."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.errors import Invalid
from tms.spark.source.offsets import (
    OffsetRange,
    SourceTopic,
    StreamOffsets,
    batch_end,
    from_json,
    joined,
    limited,
    ranges,
    to_json,
    waiting,
)
from tms.spark.source.splitting import apportioned, cut, even_splits, weighted_splits
from tms.spark.source.topics import Split

A, B, A2 = SourceTopic("a"), SourceTopic("ns:b"), SourceTopic("a", 2)

lives = st.builds(
    SourceTopic,
    st.sampled_from(["a", "ns:b", "c-_9", "a.b", "__x", "n" * 128 + ":" + "t" * 249]),
    st.integers(1, 3),
)
places = st.dictionaries(st.integers(0, 1_023), st.integers(0, 2**63 - 1), min_size=1, max_size=12)
ends = st.dictionaries(lives, places, max_size=4)


def test_offsets_look_like_those_of_kafka() -> None:
    assert to_json(StreamOffsets({A: {1: 42, 0: 23}})) == {"a": {"0": 23, "1": 42}}


def test_a_later_life_of_a_topic_and_a_begin_stand_behind_its_name() -> None:
    said = {"a#2": {"0": 5}, "a#2#from": {"0": 1}}
    assert from_json(said) == StreamOffsets({A2: {0: 5}}, {A2: {0: 1}})
    assert to_json(from_json(said)) == said


@given(ends, ends)
def test_offsets_survive_the_checkpoint(
    end: dict[SourceTopic, dict[int, int]], begun: object
) -> None:
    offsets = StreamOffsets(end, begun)  # type: ignore[arg-type]
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(ends, st.randoms())
def test_equal_offsets_have_equal_text(
    end: dict[SourceTopic, dict[int, int]], random: object
) -> None:
    def shuffled(some: Mapping[object, object]) -> dict[object, object]:
        pairs = list(some.items())
        random.shuffle(pairs)  # type: ignore[attr-defined]
        return dict(pairs)

    other = {life: shuffled(of_life) for life, of_life in shuffled(end).items()}  # type: ignore
    assert json.dumps(to_json(StreamOffsets(end))) == json.dumps(to_json(StreamOffsets(other)))  # type: ignore[arg-type]


def test_partitions_are_in_numerical_order() -> None:
    said = to_json(StreamOffsets({A: dict.fromkeys((10, 9, 2, 100), 1)}))
    assert list(said["a"]) == ["2", "9", "10", "100"]


@pytest.mark.parametrize(
    "said",
    [
        {"sourceVersion": 1},
        {"a": 5},
        {"a": {"x": 5}},
        {"a": {"0": -5}},
        {"a": {"0": None}},
        {"a b": {"0": 5}},
        {"a#0": {"0": 5}},
    ],
)
def test_the_checkpoint_of_another_source_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="checkpoint location of its own"):
        from_json(said)


def test_a_new_partition_and_a_new_topic_begin_at_their_earliest_message() -> None:
    start = StreamOffsets({A: {0: 5}})
    starts, stops = joined(start, {A: {1: 2}, B: {0: 7}}, {A: {0: 9, 1: 4}, B: {0: 8}})
    assert starts == {A: {0: 5, 1: 2}, B: {0: 7}}
    assert stops == {A: {0: 9, 1: 4}, B: {0: 8}}


def test_a_topic_that_is_gone_is_left_out() -> None:
    starts, stops = joined(StreamOffsets({A: {0: 5}, B: {0: 5}}), {}, {B: {0: 6}})
    assert (starts, stops) == ({B: {0: 5}}, {B: {0: 6}})


def test_another_life_of_a_topic_begins_at_its_own_earliest_message() -> None:
    starts, _ = joined(StreamOffsets({A: {0: 500}}), {A2: {0: 0}}, {A2: {0: 9}})
    assert starts == {A2: {0: 0}}


def test_a_batch_reads_from_the_end_of_the_one_before() -> None:
    start, end = StreamOffsets({A: {0: 5, 1: 5}}), StreamOffsets({A: {0: 9, 1: 5}})
    assert ranges(start, end) == [OffsetRange(A, 0, 5, 9)]


def test_where_a_new_partition_was_begun_stands_in_the_batch_that_reads_it() -> None:
    start = StreamOffsets({A: {0: 5}})
    starts, stops = joined(start, {A: {1: 2}}, {A: {0: 9, 1: 4}})
    end = batch_end(start, False, starts, stops)
    assert to_json(end) == {"a": {"0": 9, "1": 4}, "a#from": {"1": 2}}
    assert ranges(start, end) == [OffsetRange(A, 0, 5, 9), OffsetRange(A, 1, 2, 4)]


def test_the_first_batch_is_repeated_from_its_original_start() -> None:
    began, ended = StreamOffsets({A: {0: 5, 1: 7}}), {A: {0: 9, 1: 7}}
    end = batch_end(began, True, began.ends, ended)
    later = StreamOffsets({A: {0: 9, 1: 30}})  # `latest`, resolved again after a restart
    assert ranges(later, from_json(to_json(end))) == ranges(began, end) == [OffsetRange(A, 0, 5, 9)]


def test_a_first_batch_without_messages_looks_like_any_other() -> None:
    began = StreamOffsets({A: {0: 5}})
    assert to_json(batch_end(began, True, began.ends, began.ends)) == to_json(began)


def test_a_batch_without_news_reads_nothing_again() -> None:
    offsets = StreamOffsets({A: {0: 9}}, {A: {0: 5}})
    assert ranges(offsets, offsets) == []


def test_a_log_that_has_become_shorter_is_not_read_backwards() -> None:
    start = StreamOffsets({A: {0: 9}})
    starts, stops = joined(start, {}, {A: {0: 4}})
    assert ranges(start, batch_end(start, False, starts, stops)) == []


# --- limits ---------------------------------------------------------------------------------------


def _limited(lags: list[int], offsets_max: int, at: int = 0) -> list[int]:
    starts = {A: dict.fromkeys(range(len(lags)), at)}
    stops = {A: {partition: at + lag for partition, lag in enumerate(lags)}}
    found = limited(starts, stops, offsets_max)
    return [found[A][partition] - at for partition in range(len(lags))]


@pytest.mark.parametrize(
    "lags, offsets_max, shares",
    [
        ([10, 10], 100, [10, 10]),
        ([10, 10], 20, [10, 10]),
        ([10, 10], 10, [5, 5]),
        ([0, 10], 4, [0, 4]),
        ([900, 100], 100, [90, 10]),
        ([1_000_000, 1], 100, [99, 1]),
        ([5, 5, 5], 4, [2, 1, 1]),
    ],
)
def test_a_limit_is_divided_by_what_waits(
    lags: list[int], offsets_max: int, shares: list[int]
) -> None:
    assert _limited(lags, offsets_max) == shares


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=40),
    st.integers(1, 10**12),
    st.integers(0, 50),
)
def test_a_limit_is_used_up_and_never_passed(lags: list[int], most: int, at: int) -> None:
    shares = _limited(lags, most, at)
    assert sum(shares) == min(most, sum(lags))
    assert all(0 <= share <= lag for share, lag in zip(shares, lags, strict=True))
    if most >= len(lags):
        assert all(share for share, lag in zip(shares, lags, strict=True) if lag)


def test_partitions_take_turns_when_there_are_more_than_the_limit() -> None:
    starts, stops = {A: dict.fromkeys(range(7), 0)}, {A: dict.fromkeys(range(7), 100)}
    for _ in range(14):
        starts = {A: dict(limited(starts, stops, 3)[A])}
    assert set(starts[A].values()) == {6}


def test_batches_under_a_limit_reach_the_end() -> None:
    start, stops = StreamOffsets({A: {0: 0, 1: 0}}), {A: {0: 17, 1: 3}}
    read: list[OffsetRange] = []
    while start.ends != stops:
        starts, all_of_it = joined(start, {}, stops)
        end = batch_end(start, False, starts, limited(starts, all_of_it, 5))
        assert waiting(starts, end.ends) == min(5, waiting(starts, stops))
        read += ranges(start, end)
        start = end
    assert sum(one.stop - one.start for one in read) == 20


# --- splits ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), max_size=30), st.integers(0, 10**6))
def test_parts_are_whole_and_together_the_total(weights: list[int], total: int) -> None:
    parts = apportioned(weights, total)
    whole = sum(weights)
    assert sum(parts) == (total if whole else 0)
    for weight, part in zip(weights, parts, strict=True):
        assert abs(part - weight * total / (whole or 1)) <= 1


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=6
    ),
    st.integers(0, 60),
    st.none() | st.integers(1, 50),
)
def test_splits_cover_their_ranges_once_and_are_as_many_as_asked_for(
    wanted: dict[int, tuple[int, int]], at_least: int, most: int | None
) -> None:
    splits = cut(even_splits("a", wanted, at_least), most)
    offsets = [(one.partition, offset) for one in splits for offset in range(one.start, one.stop)]
    there = [
        (p, offset) for p, (start, stop) in sorted(wanted.items()) for offset in range(start, stop)
    ]
    assert sorted(offsets) == there
    assert all(one.start < one.stop for one in splits)
    assert all(most is None or one.stop - one.start <= most for one in splits)
    if len(there) >= at_least * 2:
        assert len(splits) >= at_least


def test_longer_ranges_are_divided_more() -> None:
    assert even_splits("a", {0: (0, 90), 1: (0, 10)}, 5) == [
        Split("a", 0, 0, 22),
        Split("a", 0, 22, 45),
        Split("a", 0, 45, 67),
        Split("a", 0, 67, 90),
        Split("a", 1, 0, 10),
    ]


def test_heavier_ranges_are_divided_more_and_never_below_one_offset() -> None:
    pieces = {0: [(0, 10, 10), (10, 20, 90)], 1: [(5, 8, 1)]}
    assert weighted_splits("a", pieces, 3) == [
        Split("a", 0, 0, 14),
        Split("a", 0, 14, 20),
        Split("a", 1, 5, 8),
    ]
    assert weighted_splits("a", {0: [(0, 3, 100)]}, 2**62) == [
        Split("a", 0, offset, offset + 1) for offset in range(3)
    ]


def test_a_split_that_is_cut_keeps_what_is_its_readers_own() -> None:
    assert cut([Split("a", 0, 0, 3, b"there")], 2) == [
        Split("a", 0, 0, 1, b"there"),
        Split("a", 0, 1, 3, b"there"),
    ]
