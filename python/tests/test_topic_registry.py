"""Topics: creating, changing, listing and deleting them, whatever fails in between."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from tests.log_kit import DAY_MS, EARLIEST, NAME, SYNCED, Bench, Limits, block
from tms.engine import Engine, EngineConfig
from tms.errors import (
    Conflict,
    FewerPartitions,
    Forbidden,
    Invalid,
    PartitionNotFound,
    StorageUnavailable,
    TopicExists,
    TopicNotFound,
)
from tms.log.pending import PendingAppend
from tms.log.records import FIRST_KEY
from tms.log.writer import Ticket
from tms.model.log import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings

OTHER = TopicName.parse("other")


def _names(bench: Bench, namespace: str = "default") -> list[str]:
    return [info.topic for info in bench.engine.list_topics(namespace)]


def _records(bench: Bench, prefix: bytes) -> list[bytes]:
    """Keys of the metadata that begin with `prefix`."""
    metadata = bench.store.inner.open("metadata", create=False)
    return [key for key, _ in metadata.scan(prefix, prefix[:-1] + b"\xff", 1 << 30)]


# -- creating and describing -----------------------------------------------------------------------


def test_a_new_topic_is_described_with_its_settings_and_empty_partitions() -> None:
    settings = TopicSettings(3, DAY_MS, 5 << 20, Durability.WRITTEN, 1_000)
    with Bench() as bench:
        made = bench.engine.create_topic(OTHER, settings)
        info = bench.engine.describe_topic(OTHER)
        assert made.settings == info.settings == settings
        assert (info.name, info.generation) == (OTHER, 1)
        assert info.created_ms == bench.clock.now_ms()
        assert [one.partition for one in info.partition_infos] == [0, 1, 2]
        for one in info.partition_infos:
            assert (one.start_offset, one.end_offset, one.first_id, one.last_id) == (
                0,
                0,
                None,
                None,
            )


def test_creating_a_topic_again_is_idempotent_with_equal_settings_only() -> None:
    with Bench() as bench:
        bench.publish(b"v")
        again = bench.engine.create_topic(NAME, bench.settings)
        assert again.generation == 1
        with pytest.raises(TopicExists):
            bench.engine.create_topic(NAME, TopicSettings(partitions=2))
        assert bench.values() == [b"v"]
        bench.restart()
        assert bench.engine.create_topic(NAME, bench.settings) == again


def test_a_description_says_what_is_readable() -> None:
    with Bench() as bench:
        first = bench.publish(b"a", b"b")
        bench.clock.pass_ms(10)
        last = bench.publish(b"c")
        info = bench.partition()
        assert (info.start_offset, info.end_offset) == (0, 3)
        assert (info.first_id, info.last_id) == (str(first.ids()[0]), str(last.ids()[0]))
        assert info.stored_bytes > 0
        bench.engine.truncate_topic(NAME, Position.offset(1))
        info = bench.partition()
        assert (info.start_offset, info.first_id) == (1, str(first.ids()[1]))


def test_the_namespace_system_can_be_read_only() -> None:
    system = TopicName("system", "things")
    with Bench() as bench:
        engine = bench.engine
        writes: list[Callable[[], object]] = [
            lambda: engine.create_topic(system, TopicSettings()),
            lambda: engine.update_topic(system, {"partitions": 2}),
            lambda: engine.truncate_topic(system, EARLIEST),
            lambda: engine.delete_topic(system),
            lambda: engine.append(system, [NewBlock(0, block(b"v"))]),
            lambda: engine.submit(system, [NewBlock(0, block(b"v"))]),
        ]
        for write in writes:
            with pytest.raises(Forbidden):
                write()
        assert engine.list_topics("system") == []


def test_an_unknown_topic_or_partition_is_not_found_by_any_call() -> None:
    with Bench() as bench:
        engine = bench.engine
        at = [PartitionPosition(0, EARLIEST)]
        calls: list[Callable[[], object]] = [
            lambda: engine.describe_topic(OTHER),
            lambda: engine.update_topic(OTHER, {"partitions": 2}),
            lambda: engine.truncate_topic(OTHER, EARLIEST),
            lambda: engine.delete_topic(OTHER),
            lambda: engine.append(OTHER, [NewBlock(0, block(b"v"))]),
            lambda: engine.fetch(OTHER, at, 1),
            lambda: engine.watch(OTHER, at, lambda: None),
            lambda: engine.inspect(OTHER, 0, 1),
        ]
        for call in calls:
            with pytest.raises(TopicNotFound):
                call()
        assert engine.fetch_cached(OTHER, at, 1) is None
        for partition in (-1, 1):
            at = [PartitionPosition(partition, EARLIEST)]
            for call in (
                lambda: bench.publish(b"v", partition=partition),  # noqa: B023
                lambda: engine.fetch(NAME, at, 1),  # noqa: B023
                lambda: engine.watch(NAME, at, lambda: None),  # noqa: B023
                lambda: engine.inspect(NAME, partition, 1),  # noqa: B023
            ):
                with pytest.raises(PartitionNotFound):
                    call()


def test_the_number_of_topics_is_bounded() -> None:
    with Bench() as bench:
        bench.engine.close()
        for _ in range(2):  # the bound counts what is there after a restart, too
            bench.engine = Engine(bench.store, bench.clock, EngineConfig(topics=3))
            for i in (1, 2):
                bench.engine.create_topic(TopicName.parse(f"t{i}"), TopicSettings())
            with pytest.raises(Conflict):
                bench.engine.create_topic(OTHER, TopicSettings())
            bench.engine.close()
        bench.engine = Engine(bench.store, bench.clock, EngineConfig(topics=3))
        bench.engine.delete_topic(NAME)
        bench.engine.create_topic(OTHER, TopicSettings())


# -- updating --------------------------------------------------------------------------------------


def test_settings_change_at_once_and_for_good() -> None:
    with Bench() as bench:
        bench.publish(b"v")
        changes = {
            "partitions": 3,
            "retention": "2d",
            "retention_bytes": 2 << 20,
            "durability": "written",
            "message_bytes_max": 77,
        }
        expected = TopicSettings(3, 2 * DAY_MS, 2 << 20, Durability.WRITTEN, 77)
        assert bench.engine.update_topic(NAME, changes).settings == expected
        bench.publish(b"w", partition=2)
        bench.restart()
        info = bench.engine.describe_topic(NAME)
        assert (info.settings, info.generation) == (expected, 1)
        assert bench.values() == [b"v"]
        assert bench.values(partition=2) == [b"w"]
        assert (
            bench.engine.update_topic(NAME, {"retention": "forever"}).settings.retention_ms is None
        )


def test_partitions_never_become_fewer() -> None:
    with Bench(TopicSettings(partitions=3)) as bench:
        with pytest.raises(FewerPartitions):
            bench.engine.update_topic(NAME, {"partitions": 2})
        assert bench.engine.describe_topic(NAME).settings.partitions == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"nothing": 1},
        {"partitions": "2"},
        {"partitions": 1_000_000},
        {"retention": "1 fortnight"},
        {"retention": 1.5},
        {"retention": True},
        {"retention_ms": 0},
        {"durability": "forever"},
        {"message_bytes_max": -1},
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(changes: dict[str, object]) -> None:
    with Bench() as bench:
        with pytest.raises(Invalid):
            bench.engine.update_topic(NAME, {"partitions": 5} | changes)
        assert bench.engine.describe_topic(NAME).settings == bench.settings


# -- listing ---------------------------------------------------------------------------------------


def test_a_listing_is_sorted_by_name_and_pages_without_gaps_or_repeats() -> None:
    names = sorted([f"t{i}" for i in range(25)] + ["T1", "_x", "a-b", "a", "aa", "0"])
    with Bench() as bench:
        bench.engine.delete_topic(NAME)
        for name in reversed(names):
            bench.engine.create_topic(TopicName.parse(name), TopicSettings())
        bench.engine.create_topic(TopicName.parse("other:t"), TopicSettings())
        assert _names(bench) == names
        assert _names(bench, "other") == ["t"]
        assert _names(bench, "nobody") == []
        for limit in (1, 2, 7, 100):
            found: list[str] = []
            after: str | None = None
            while page := bench.engine.list_topics("default", after, limit):
                assert len(page) <= limit
                found += [info.topic for info in page]
                after = found[-1]
            assert found == names


def test_a_listing_begins_after_a_name_that_is_not_there() -> None:
    with Bench() as bench:
        bench.engine.create_topic(OTHER, TopicSettings())
        assert [info.topic for info in bench.engine.list_topics("default", "p")] == ["topic"]


@pytest.mark.parametrize(("namespace", "after"), [("", None), ("a/b", None), ("default", "ä")])
def test_a_listing_of_what_cannot_be_a_name_is_refused(namespace: str, after: str | None) -> None:
    with Bench() as bench, pytest.raises(Invalid):
        bench.engine.list_topics(namespace, after)


# -- deleting --------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_with_its_space_and_all_of_its_records() -> None:
    with Bench(TopicSettings(partitions=2)) as bench:
        bench.publish(b"v")
        bench.publish(b"w", partition=1)
        assert len(bench.maps()) == 2
        bench.engine.delete_topic(NAME)
        with pytest.raises(TopicNotFound):
            bench.read()
        with pytest.raises(TopicNotFound):
            bench.engine.delete_topic(NAME)
        assert bench.maps() == []
        for prefix in (b"topic/", b"partition/", b"producers/", b"deleted/"):
            assert _records(bench, prefix) == []
        assert bench.engine.stats().cache_bytes == 0


def test_a_re_created_topic_shows_nothing_of_its_older_lives() -> None:
    with Bench() as bench:
        for generation in range(1, 4):
            assert bench.engine.describe_topic(NAME).generation == generation
            position = bench.fetch(Position.latest()).next[0]
            assert bench.values() == []
            bench.publish(b"%d" % generation, producer=7)
            assert bench.read(position)[0].offset == 0
            bench.restart()
            assert bench.values() == [b"%d" % generation]
            bench.engine.delete_topic(NAME)
            if generation == 2:
                bench.restart()
            bench.engine.create_topic(NAME, TopicSettings(partitions=generation))


def test_whoever_knew_the_topic_before_it_was_deleted_cannot_bring_it_back() -> None:
    with Bench(TopicSettings(partitions=2), Limits(cache_bytes=0)) as bench:
        bench.publish(b"v")
        registry, partitions = bench.engine._registry, bench.engine._partitions
        record = registry.find(NAME)
        log = partitions.get(NAME, record, 0)
        bench.engine.delete_topic(NAME)
        with pytest.raises(TopicNotFound):
            partitions.get(NAME, record, 1)
        with pytest.raises(TopicNotFound):
            log.writer.reserve(Ticket(PendingAppend(1), SYNCED))
        with pytest.raises(TopicNotFound):
            log.reader.truncate(Position.latest(), bench.clock.now_ms())
        with pytest.raises(TopicNotFound):
            log.reader.read(EARLIEST, FIRST_KEY, 1)
        assert bench.maps() == []


def test_a_deletion_whose_space_could_not_be_freed_is_finished_by_the_cleaner() -> None:
    with Bench() as bench:
        bench.publish(b"v")

        def stuck(operation: str, name: str) -> None:
            if operation == "drop":
                raise StorageUnavailable("Reads do not end.")

        bench.store.before = stuck
        bench.engine.delete_topic(NAME)
        assert len(bench.maps()) == 1
        bench.engine.create_topic(NAME, TopicSettings())
        bench.store.before = lambda operation, name: None
        bench.engine.maintenance.clean()
        assert bench.maps() == []
        bench.publish(b"w")
        bench.engine.maintenance.clean()
        assert bench.values() == [b"w"]


# -- crashes ---------------------------------------------------------------------------------------


def _crash_at_every_write(
    bench: Callable[[], Bench], change: Callable[[Bench], object], check: Callable[[Bench], None]
) -> int:
    """Fail the nth write of a change, for every n and both outcomes, die, start again and check;
    returns the number of writes."""
    for nth in count(1):
        for stored in (False, True):
            with bench() as one:
                before = one.store.writes
                one.store.fail_write(nth, stored=stored)
                with suppress(StorageUnavailable):
                    change(one)
                failed = one.store.writes - before >= nth
                one.kill()
                if not failed:
                    return nth - 1
                check(one)
    raise AssertionError("a change has an end")


def test_a_crash_while_creating_leaves_a_whole_topic_or_none() -> None:
    def check(bench: Bench) -> None:
        exists = "other" in _names(bench)
        if exists:
            assert bench.engine.describe_topic(OTHER).settings == TopicSettings(partitions=2)
        else:
            with pytest.raises(TopicNotFound):
                bench.engine.describe_topic(OTHER)
        info = bench.engine.create_topic(OTHER, TopicSettings(partitions=2))
        assert info.generation >= 1
        bench.engine.append(OTHER, [NewBlock(1, block(b"v"))])
        assert len(bench.maps()) == 1

    writes = _crash_at_every_write(
        Bench, lambda bench: bench.engine.create_topic(OTHER, TopicSettings(partitions=2)), check
    )
    assert writes == 3


def test_a_crash_while_deleting_leaves_a_whole_topic_or_none_and_no_maps() -> None:
    def make() -> Bench:
        bench = Bench(TopicSettings(partitions=2))
        bench.publish(b"v")
        bench.publish(b"w", partition=1)
        return bench

    def check(bench: Bench) -> None:
        if _names(bench):
            assert bench.values() == [b"v"]
            assert bench.values(partition=1) == [b"w"]
            assert _records(bench, b"deleted/") == []
            bench.engine.delete_topic(NAME)
        assert bench.maps() == []
        assert _records(bench, b"partition/") + _records(bench, b"deleted/") == []
        bench.engine.create_topic(NAME, TopicSettings())
        assert bench.engine.describe_topic(NAME).generation == 2
        assert bench.values() == []

    writes = _crash_at_every_write(make, lambda bench: bench.engine.delete_topic(NAME), check)
    assert writes == 3


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("nth", range(3))
def test_a_crash_while_dropping_the_nth_map_frees_all_of_them_later(
    nth: int, dropped: bool
) -> None:
    with Bench(TopicSettings(partitions=3)) as bench:
        for partition in range(3):
            bench.publish(b"v", partition=partition)
        drops = 0

        def crash(operation: str, name: str) -> None:
            nonlocal drops
            if operation == "drop":
                if drops == nth:
                    if dropped:
                        bench.store.inner.drop(name)
                    raise StorageUnavailable("The process is gone.")
                drops += 1

        bench.store.before = crash
        bench.engine.delete_topic(NAME)
        assert len(bench.maps()) == 3 - nth - dropped
        bench.store.before = lambda operation, name: None
        bench.kill()
        assert bench.maps() == []
        assert _records(bench, b"partition/") == []


def test_an_update_whose_outcome_is_unknown_is_looked_up() -> None:
    for stored in (False, True):
        with Bench() as bench:
            bench.store.fail_write(1, stored=stored, prefix="metadata")
            with pytest.raises(StorageUnavailable):
                bench.engine.update_topic(NAME, {"partitions": 4})
            assert bench.engine.describe_topic(NAME).settings.partitions == (4 if stored else 1)
            bench.engine.maintenance.recover()
            bench.engine.update_topic(NAME, {"partitions": 5})


def test_a_deletion_whose_outcome_is_unknown_is_looked_up() -> None:
    for stored in (False, True):
        with Bench() as bench:
            bench.publish(b"v")
            bench.store.fail_write(2, stored=stored, prefix="metadata")
            with pytest.raises(StorageUnavailable):
                bench.engine.delete_topic(NAME)
            bench.engine.maintenance.recover()
            if stored:
                with pytest.raises(TopicNotFound):
                    bench.engine.describe_topic(NAME)
                bench.engine.create_topic(NAME, TopicSettings())
                bench.engine.maintenance.clean()
                assert bench.maps() == []
                assert bench.values() == []
            else:
                assert bench.values() == [b"v"]
                bench.engine.maintenance.clean()
                assert bench.values() == [b"v"]


def test_failed_metadata_recovers_by_itself() -> None:
    with Bench() as bench:
        bench.store.fail_write(1, stored=False, prefix="metadata", refusals=1)
        for _ in range(2):
            with pytest.raises(StorageUnavailable):
                bench.engine.create_topic(OTHER, TopicSettings())
        bench.engine.maintenance.recover()
        with pytest.raises(StorageUnavailable):
            bench.engine.create_topic(OTHER, TopicSettings())
        bench.engine.maintenance.recover()
        bench.engine.create_topic(OTHER, TopicSettings())
