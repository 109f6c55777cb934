"""Topics: creating, changing and listing them."""

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import DAY_MS, EARLIEST, NAME, Bench, block
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.engine.observer import StoreObserver
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
from tms.model import keys
from tms.model.keys import Partitioner
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import (
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MIN,
    Cleanup,
    Durability,
    TopicName,
    TopicSettings,
)
from tms.store.memory import MemoryStore

OTHER = TopicName.parse("other")


def _names(bench: Bench, namespace: str = "default") -> list[str]:
    return [info.topic for info in bench.engine.list_topics(namespace)]


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


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_partitioner_outlives_a_restart_and_other_changes(partitioner: Partitioner) -> None:
    with Bench() as bench:
        bench.engine.create_topic(OTHER, TopicSettings(3, partitioner=partitioner))
        bench.restart()
        bench.engine.update_topic(OTHER, {"partitions": 5})
        bench.engine.topics.registry.note_foreign(OTHER)
        bench.restart()
        assert bench.engine.settings(OTHER).partitioner is partitioner


def test_a_record_of_an_earlier_version_has_the_partitioner_of_all_topics_then() -> None:
    with Bench() as bench:
        bench.engine.create_topic(OTHER, TopicSettings(3))
        metadata, key = bench.engine.topics.registry.metadata, keys.topic_key(*OTHER)
        record = json.loads(metadata.get(key) or b"")
        assert record.pop("partitioner") == "crc32c"
        metadata.write([(key, json.dumps(record).encode())], Durability.SYNCED)
        bench.restart()
        assert bench.engine.create_topic(OTHER, TopicSettings(3)).generation == 1
        assert bench.engine.settings(OTHER).partitioner is Partitioner.CRC32C


def test_a_partitioner_is_for_good() -> None:
    settings = TopicSettings(3, partitioner=Partitioner.MURMUR2)
    with Bench() as bench:
        bench.engine.create_topic(OTHER, settings)
        with pytest.raises(Conflict, match="cannot become crc32c: the messages of a key"):
            bench.engine.update_topic(OTHER, {"partitioner": "crc32c", "partitions": 4})
        with pytest.raises(Invalid, match="crc32c or murmur2, got 'md5'"):
            bench.engine.update_topic(OTHER, {"partitioner": "md5"})
        with pytest.raises(TopicExists):
            bench.engine.create_topic(OTHER, TopicSettings(3))
        assert bench.engine.settings(OTHER) == settings


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
        for _ in range(2):  # the bound counts existing ones after a restart, too
            bench.engine = Engine(bench.store, bench.clock, EngineConfig(topics=3))
            for i in (1, 2):
                bench.engine.create_topic(TopicName.parse(f"t{i}"), TopicSettings())
            with pytest.raises(Conflict):
                bench.engine.create_topic(OTHER, TopicSettings())
            bench.engine.close()
        bench.engine = Engine(bench.store, bench.clock, EngineConfig(topics=3))
        for gone, new in ((NAME, OTHER), (OTHER, NAME)):
            bench.engine.delete_topic(gone)
            bench.engine.create_topic(new, TopicSettings())
            with pytest.raises(Conflict):
                bench.engine.create_topic(gone, TopicSettings())


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
            "cleanup": "delete,compact",
            "tombstone_retention": "2h",
        }
        expected = TopicSettings(
            3, 2 * DAY_MS, 2 << 20, Durability.WRITTEN, 77, Cleanup.BOTH, 7_200_000
        )
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


def test_properties_stay_as_they_were_said_last() -> None:
    with Bench() as bench:
        bench.engine.create_new_topic(OTHER, TopicSettings(), {"a": "1", "b": "2"})
        bench.engine.update_topic(OTHER, {"partitions": 2})
        assert bench.engine.properties(OTHER) == {"a": "1", "b": "2"}
        bench.engine.update_topic(OTHER, {}, {"b": "3"})
        bench.restart()
        assert bench.engine.properties(OTHER) == {"b": "3"}
        bench.engine.update_topic(OTHER, {}, {})
        assert bench.engine.properties(OTHER) == {}


def test_partitions_never_become_fewer() -> None:
    with Bench(TopicSettings(partitions=3)) as bench:
        with pytest.raises(FewerPartitions) as caught:
            bench.engine.update_topic(NAME, {"partitions": 2})
        assert caught.value.details["partitions"] == 3
        assert bench.engine.describe_topic(NAME).settings.partitions == 3


def test_how_many_partitions_a_topic_had_is_remembered() -> None:
    with Bench() as bench:
        uid, counts = bench.engine.growth(NAME)
        assert counts == (1,)
        for partitions in (2, 2, 5):
            bench.engine.update_topic(NAME, {"partitions": partitions})
            bench.engine.update_topic(NAME, {"retention": "1h"})
        assert bench.engine.growth(NAME) == (uid, (5, 2, 1))
        for partitions in range(6, 30):
            bench.engine.update_topic(NAME, {"partitions": partitions})
        assert bench.engine.growth(NAME)[1] == (29, 28, 27, 26, 25, 24, 23, 22, 21)


def test_a_compacted_topic_has_no_retention_unless_both_are_asked_for() -> None:
    with Bench() as bench:
        changes = {"cleanup": "compact", "retention": "2d"}
        found = bench.engine.update_topic(NAME, changes).settings
        assert (found.cleanup, found.retention_ms) == (Cleanup.COMPACT, None)
        both = {"cleanup": "compact,delete", "retention": "2d", "tombstone_retention": "forever"}
        found = bench.engine.update_topic(NAME, both).settings
        assert (found.cleanup, found.retention_ms) == (Cleanup.BOTH, 2 * DAY_MS)
        assert found.tombstone_retention_ms is None


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
        {"cleanup": "keep"},
        {"tombstone_retention": "a while"},
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(changes: dict[str, object]) -> None:
    with Bench() as bench:
        with pytest.raises(Invalid):
            bench.engine.update_topic(NAME, {"partitions": 5} | changes)
        assert bench.engine.describe_topic(NAME).settings == bench.settings


@pytest.mark.parametrize("field", ["retention", "tombstone_retention"])
@pytest.mark.parametrize("value", ["a while", 1.5])
def test_a_bad_retention_is_named(field: str, value: object) -> None:
    with Bench() as bench:
        with pytest.raises(Invalid) as refused:
            bench.engine.update_topic(NAME, {field: value})
        assert refused.value.details["field"] == field


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


# -- topics without a retention of their own -------------------------------------------------------


class _SaysRetention(MemoryStore):
    """A store whose operator sets a retention, as tables of HBase have one."""

    says_ms: int | None = None
    fails = False

    def default_retention_ms(self) -> int | None:
        if self.fails:
            raise StorageUnavailable("It may not be read.")
        return self.says_ms


NO_RETENTION = TopicSettings(durability=Durability.WRITTEN, retention_is_default=True)


def _engine(store: MemoryStore) -> Engine:
    return Engine(store, ManualClock())


def _noted(store: MemoryStore) -> bytes | None:
    return store.open(keys.METADATA_MAP, create=False).get(keys.RETENTION_DEFAULT)


def test_a_topic_without_a_retention_of_its_own_goes_by_that_of_the_store() -> None:
    store = _SaysRetention(shared=True)
    store.says_ms = 3 * DAY_MS
    engine = _engine(store)
    assert engine.create_topic(OTHER, NO_RETENTION).settings.retention_ms == 3 * DAY_MS
    own = engine.create_topic(NAME, TopicSettings(retention_ms=DAY_MS))
    assert not own.settings.retention_is_default
    store.says_ms = 5 * DAY_MS
    engine.maintenance.clean()
    settings = engine.describe_topic(OTHER).settings
    assert (settings.retention_ms, settings.retention_is_default) == (5 * DAY_MS, True)
    assert engine.describe_topic(NAME).settings.retention_ms == DAY_MS
    store.says_ms = None
    assert _engine(store).describe_topic(OTHER).settings.retention_ms == RETENTION_MS_DEFAULT


def test_what_a_reader_gets_of_such_a_topic_follows_the_store() -> None:
    store, clock = _SaysRetention(shared=True), ManualClock()
    store.says_ms = 3 * DAY_MS
    engine = Engine(store, clock)
    engine.create_topic(OTHER, NO_RETENTION)
    engine.append(OTHER, [NewBlock(0, block(b"v"))])
    clock.pass_ms(2 * DAY_MS)
    at = [PartitionPosition(0, EARLIEST)]
    assert engine.fetch(OTHER, at, 1).blocks
    store.says_ms = DAY_MS
    engine.maintenance.clean()
    assert not engine.fetch(OTHER, at, 1).blocks
    view = StoreObserver(store, clock)
    assert view.record(OTHER).retention_ms == DAY_MS


def test_a_shared_store_notes_the_default_retention_for_its_cleaner() -> None:
    store = _SaysRetention(shared=True)
    store.says_ms = 3 * DAY_MS
    engine = _engine(store)
    assert _noted(store) == b"%d" % (3 * DAY_MS)
    store.says_ms = 0
    engine.maintenance.clean()
    assert _noted(store) == b"%d" % RETENTION_MS_MIN
    alone = _SaysRetention()
    _engine(alone)
    assert _noted(alone) is None


def test_what_is_noted_already_is_not_written_again() -> None:
    store = FaultyStore(_SaysRetention(shared=True))
    engine = Engine(store, ManualClock())
    before = store.writes
    engine.topics.registry.refresh_default()
    assert store.writes == before


class _Second(MemoryStore):
    """A store in which another process creates its metadata after this one has looked for them."""

    def names(self, prefix: str) -> list[str]:
        found = super().names(prefix)
        if not found and prefix == keys.METADATA_MAP:
            super().open(prefix, create=True)
        return found


def test_of_two_processes_that_begin_a_shared_store_both_use_it() -> None:
    store = _Second(shared=True)
    engine = _engine(store)
    engine.create_topic(OTHER, TopicSettings())
    assert [one.topic for one in _engine(store).list_topics("default")] == [OTHER.topic]


def test_while_the_store_does_not_say_it_readers_go_by_what_was_noted() -> None:
    store = _SaysRetention(shared=True)
    store.says_ms = 3 * DAY_MS
    _engine(store).create_topic(OTHER, NO_RETENTION)
    store.fails = True
    engine = _engine(store)
    engine.maintenance.clean()
    assert engine.describe_topic(OTHER).settings.retention_ms == 3 * DAY_MS
    assert _noted(store) == b"%d" % (3 * DAY_MS)


def test_a_default_is_not_stored_as_a_topics_own() -> None:
    store = MemoryStore()
    _engine(store).create_topic(OTHER, NO_RETENTION)
    raw = store.open(keys.METADATA_MAP, create=False).get(keys.topic_key(*OTHER))
    assert raw is not None
    kept = msgspec.json.decode(raw)
    # Null means for ever to a release without defaults: it then drops nothing.
    assert (kept["retention_ms"], kept["retention_is_default"]) == (None, True)


def test_a_topic_gets_a_retention_of_its_own_and_gives_it_up() -> None:
    engine = _engine(MemoryStore())
    engine.create_topic(OTHER, NO_RETENTION)
    own = engine.update_topic(OTHER, {"retention_ms": DAY_MS}).settings
    assert (own.retention_ms, own.retention_is_default) == (DAY_MS, False)
    assert engine.update_topic(OTHER, {"partitions": 2}).settings.retention_ms == DAY_MS
    for changes in ({"retention": "default"}, {"retention_is_default": True}):
        engine.update_topic(OTHER, {"retention": "forever"})
        given_up = engine.update_topic(OTHER, changes).settings
        assert (given_up.retention_ms, given_up.retention_is_default) == (
            RETENTION_MS_DEFAULT,
            True,
        )
    compacted = engine.update_topic(OTHER, {"cleanup": "compact"}).settings
    assert (compacted.retention_ms, compacted.retention_is_default) == (None, False)


def test_who_says_nothing_of_the_retention_agrees_with_a_topic_of_an_earlier_version() -> None:
    store = _SaysRetention(shared=True)
    engine = _engine(store)
    before = TopicSettings(durability=Durability.WRITTEN)  # two weeks, as if they were its own
    engine.create_topic(OTHER, before)
    engine.create_topic(NAME, replace(before, retention_ms=DAY_MS))
    store.says_ms = 90 * DAY_MS
    engine = _engine(store)
    assert engine.create_topic(OTHER, NO_RETENTION).settings == before
    with pytest.raises(TopicExists):
        engine.create_topic(NAME, NO_RETENTION)


def test_a_topic_whose_record_another_version_wrote_can_be_changed_and_deleted() -> None:
    store = MemoryStore()
    engine = _engine(store)
    for name in (NAME, OTHER):
        engine.create_topic(name, TopicSettings())
        metadata = store.open(keys.METADATA_MAP, create=False)
        raw = metadata.get(keys.topic_key(*name))
        assert raw is not None
        fields = msgspec.json.decode(raw)
        del fields["retention_is_default"], fields["cleanup"]
        metadata.write([(keys.topic_key(*name), msgspec.json.encode(fields))], Durability.WRITTEN)
    engine = _engine(store)
    assert engine.update_topic(NAME, {"partitions": 3}).settings.partitions == 3
    engine.delete_topic(OTHER)
    assert [one.topic for one in engine.list_topics("default")] == [NAME.topic]
