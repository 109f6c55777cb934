"""Fetching over a topic: the bytes that partitions share, waiting for transactions, and the fetched
messages that may still be shown."""

from collections.abc import Iterator

import pytest

from tests.log_kit import EARLIEST, LATEST, MANY, NAME, Bench, block, seen
from tests.waiting import until
from tms.block import encode
from tms.errors import PartitionNotFound
from tms.model.filter import Filter
from tms.model.message import Fetched, Holder, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import TopicSettings
from tms.model.transaction import Commit
from tms.topics.filtering import PAGE_BYTES
from tms.transactions.uncommitted import StoredRange


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(TopicSettings(partitions=2)) as made:
        yield made


def test_a_page_that_one_partition_fills_exactly_has_nothing_of_the_next(bench: Bench) -> None:
    for partition in range(2):
        bench.publish(b"v", partition=partition)
    (stored,) = bench.fetch(EARLIEST).blocks
    at = [PartitionPosition(partition, EARLIEST) for partition in range(2)]
    fetched = bench.engine.fetch(NAME, at, len(stored.block))
    assert [one.partition for one in fetched.blocks] == [0]
    assert (fetched.next[1], fetched.reached[1], fetched.ends[1]) == (EARLIEST, 0, 1)


def test_how_often_a_fetch_needed_the_store_is_counted(bench: Bench) -> None:
    bench.publish(b"v")
    bench.restart()
    bench.fetch(EARLIEST)
    before = bench.engine.stats()
    for at in (EARLIEST, LATEST, LATEST, LATEST, EARLIEST):
        bench.fetch(at)
    after = bench.engine.stats()
    assert after.cache_hits - before.cache_hits == 3
    assert after.cache_misses - before.cache_misses == 2


def test_who_waits_for_a_transaction_is_told_when_it_ends_and_not_before(bench: Bench) -> None:
    transactions = bench.engine.transactions
    bench.publish(b"decided")
    id = transactions.begin().transaction_id
    transactions.submit(NAME, [NewBlock(0, block(b"in doubt"))], id).result(5)
    fetched = bench.fetch(EARLIEST)
    assert (fetched.held, fetched.ends, fetched.reached) == ({0: Holder(id, True)}, {0: 1}, {0: 1})
    calls: list[int] = []
    at = [PartitionPosition(0, fetched.next[0])]
    bench.engine.watch(NAME, at, lambda: calls.append(1), fetched.held)
    bench.publish(b"behind it")
    assert calls == []
    transactions.commit(Commit(id))
    until(lambda: calls == [1])
    assert bench.values(fetched.next[0]) == [b"in doubt", b"behind it"]


def in_doubt(bench: Bench, pointer: int) -> tuple[StoredRange, Fetched]:
    """A message of a foreign transaction, and a fetch that it holds back."""
    (place,) = bench.engine.transactions.submit(
        NAME, [NewBlock(0, block(b"in doubt"))], pointer
    ).result(5)
    return StoredRange.of(NAME, place, pointer), bench.fetch(EARLIEST)


def test_who_waits_for_a_transaction_of_elsewhere_is_told_when_it_is_rolled_back(
    bench: Bench,
) -> None:
    """This also holds after a power loss, when a foreign pointer may also have been assigned
    here."""
    pointer = bench.clock.now_ms() * POINTERS_PER_MS - 1
    range_, fetched = in_doubt(bench, pointer)
    assert fetched.held == {0: Holder(pointer, False)}
    bench.engine.transactions.manager.state.lost.append((pointer - 1, pointer + 1))
    calls: list[int] = []
    at = [PartitionPosition(0, fetched.next[0])]
    bench.engine.watch(NAME, at, lambda: calls.append(1), fetched.held)
    bench.publish(b"behind it")
    assert calls == []
    bench.engine.transactions.roll_back(range_)
    assert calls == [1]
    bench.engine.watch(NAME, at, lambda: calls.append(2), fetched.held)
    assert calls == [1, 2], "it was rolled back before"
    assert bench.values(fetched.next[0]) == [b"behind it"]


def test_who_waits_for_a_message_that_a_snapshot_will_never_show_looks_once(bench: Bench) -> None:
    """After an end of any kind: it would look again without a pause."""
    transactions = bench.engine.transactions
    snapshot = transactions.manager.snapshot(transactions.begin().transaction_id)
    other = transactions.begin().transaction_id
    transactions.submit(NAME, [NewBlock(0, block(b"later"))], other).result(5)
    transactions.commit(Commit(other))
    at, before = [PartitionPosition(0, EARLIEST)], bench.engine.stats().cache_hits
    fetched = bench.engine.fetch(NAME, at, MANY, 0.2, snapshot)
    assert (fetched.blocks, fetched.held) == ([], {0: Holder(other, True)})
    assert bench.engine.stats().cache_hits - before <= 2


def test_a_watch_that_cannot_begin_leaves_none_behind(bench: Bench) -> None:
    calls: list[int] = []
    at = [PartitionPosition(0, bench.fetch(LATEST).next[0]), PartitionPosition(7, LATEST)]
    with pytest.raises(PartitionNotFound):
        bench.engine.watch(NAME, at, lambda: calls.append(1))
    bench.publish(b"v")
    assert calls == []


def test_a_page_with_a_filter_is_bounded_in_bytes_and_goes_on_behind_it(bench: Bench) -> None:
    for number in range(6):
        made = encode([b"%d" % number, b"x"], [b"a", b"b"])
        bench.engine.append(NAME, [NewBlock(0, made)])
    where = Filter.parse("key = a")
    everything = bench.engine.fetch(NAME, [PartitionPosition(0, EARLIEST)], MANY, where=where)
    sizes = {len(stored.block) for stored in everything.blocks}
    assert len(sizes) == 1
    position, pages = EARLIEST, list[tuple[int, int]]()
    while True:
        at = [PartitionPosition(0, position)]
        fetched = bench.engine.fetch(NAME, at, 2 * max(sizes), where=where)
        if not fetched.blocks:
            break
        pages.append((len(fetched.blocks), fetched.reached[0]))
        position = fetched.next[0]
    assert pages == [(2, 4), (2, 8), (2, 12)]
    at = [PartitionPosition(0, EARLIEST)]
    assert len(bench.engine.fetch(NAME, at, 2 * max(sizes) + 1, where=where).blocks) == 3


def test_one_look_with_a_filter_goes_on_behind_pages_without_a_match(bench: Bench) -> None:
    for number in range(4):
        made = encode([bytes(PAGE_BYTES * 2 // 3)], [b"a" if number == 3 else b"b"])
        bench.engine.append(NAME, [NewBlock(0, made)])
    at = [PartitionPosition(0, EARLIEST)]
    fetched = bench.engine.fetch(NAME, at, MANY, where=Filter.parse("key = a"))
    assert [one.offset for one in seen(fetched.blocks)] == [3]
    assert fetched.reached == {0: 4}


def test_the_end_of_a_partition_is_told_with_its_last_id(bench: Bench) -> None:
    assert [bench.engine.topics.fetcher.end(NAME, partition) for partition in range(2)] == [
        (0, None)
    ] * 2
    place = bench.publish(b"a", b"b", partition=1)
    assert bench.engine.topics.fetcher.end(NAME, 0) == (0, None)
    assert bench.engine.topics.fetcher.end(NAME, 1) == (2, place.ids()[1])


def test_what_was_fetched_may_be_shown_until_it_is_truncated(bench: Bench) -> None:
    first = bench.publish(b"a").ids()[0]
    last = bench.publish(b"b", partition=1).ids()[0]
    bench.clock.pass_ms(1)
    bench.publish(b"c")
    kept = bench.engine.topics.fetcher.kept(NAME, [0, 1])
    assert kept[0].floor <= first[:2] and kept[1].floor <= last[:2]
    bench.engine.truncate_topic(NAME, Position.after(last))
    after = bench.engine.topics.fetcher.kept(NAME, [0, 1])
    assert after[0].floor > first[:2] and after[1].floor > last[:2]
    assert {one.rewrites for one in (*kept.values(), *after.values())} == {0}
