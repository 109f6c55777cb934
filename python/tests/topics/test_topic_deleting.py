"""Topics: deleting them, and crashes while they are created, changed or deleted."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from tests.log_kit import EARLIEST, NAME, SYNCED, Bench, Limits, block
from tests.owners_kit import Processes
from tms.errors import (
    StorageUnavailable,
    TopicNotFound,
)
from tms.log.groups import Ticket
from tms.log.pending import PendingAppend
from tms.log.records import FIRST_KEY
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.topic import TopicName, TopicSettings
from tms.topics import registry

OTHER = TopicName.parse("other")


def _names(bench: Bench) -> list[str]:
    return [info.topic for info in bench.engine.list_topics("default")]


def _records(bench: Bench, prefix: bytes) -> list[bytes]:
    """Keys of the metadata that begin with `prefix`."""
    metadata = bench.store.inner.open("metadata", create=False)
    return [key for key, _ in metadata.scan(prefix, prefix[:-1] + b"\xff", 1 << 30)]


# -- deleting --------------------------------------------------------------------------------------


def test_topics_are_deleted_with_all_of_their_records_however_many_pages_those_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "SCAN_BYTES", 1)
    with Bench(TopicSettings(partitions=3)) as bench:
        for partition in range(3):
            bench.publish(b"v", partition=partition)
        names = [TopicName.parse(f"t{number}") for number in range(3)]
        for name in names:
            bench.engine.create_topic(name, TopicSettings(partitions=3))
            blocks = [NewBlock(partition, block(b"v")) for partition in range(3)]
            bench.engine.append(name, blocks)
        for name in (NAME, *names):  # the process ends before their maps are dropped
            bench.engine.topics.registry.delete(name)
        bench.restart()
        assert _records(bench, b"deleted/") == []
        assert _records(bench, b"partition/") == _records(bench, b"producers/") == []
        assert bench.maps() == []


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
        registry, partitions = bench.engine.topics.registry, bench.engine.topics.partitions
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


@pytest.mark.parametrize("anew", [False, True])
def test_who_publishes_to_a_topic_that_another_process_deleted_is_told(anew: bool) -> None:
    both = Processes()
    both.engines[1].delete_topic(NAME)
    if anew:
        both.engines[1].create_topic(NAME, TopicSettings())
    happened = "was deleted and created anew by" if anew else "was deleted by"
    with pytest.raises(TopicNotFound, match=happened) as refused:
        both.publish(0, b"lost")
    assert refused.value.details == {"topic": str(NAME)}
    if not anew:
        both.engines[0].create_topic(NAME, TopicSettings())
    assert both.publish(0, b"v").base_offset == 0
    assert both.values(0) == [b"v"]


def test_a_topic_that_is_deleted_while_it_is_first_published_to_leaves_no_record() -> None:
    both = Processes()

    def delete(operation: str, name: str) -> None:
        if (operation, name) == ("compare_and_set", "metadata"):
            both.stores[0].before = lambda operation, name: None
            both.engines[1].delete_topic(NAME)

    both.stores[0].before = delete
    with pytest.raises(TopicNotFound):
        both.publish(0, b"lost")
    metadata = both.kept.open("metadata", create=False)
    assert metadata.scan(b"partition/", b"partition0", 1 << 30) == []
    both.engines[1].create_topic(NAME, TopicSettings())
    assert both.publish(0, b"v").base_offset == 0
    assert both.values(1) == [b"v"]


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
