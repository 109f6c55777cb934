"""Internal topics: replays, and their starts."""

from collections.abc import Iterator

import pytest

from tests.gate_kit import StoreGate, in_thread
from tests.log_kit import SEGMENTS, SYNCED, Bench
from tests.waiting import PATIENCE_S, until
from tms.block import Flags
from tms.errors import StorageUnavailable, TimedOut
from tms.log.groups import Stamp
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.topics.internal_topic import InternalTopic


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


def _open(bench: Bench) -> InternalTopic:
    return bench.engine.topics.journal(TopicName("system", "_test"))


def _write(topic: InternalTopic, *values: bytes) -> None:
    topic.write([(None, value) for value in values], SYNCED)


def _values(topic: InternalTopic, start: Position | None = None) -> list[bytes | None]:
    entries = topic.replay() if start is None else topic.since(start)
    return [entry.value for entry in entries]


def test_an_internal_topic_gives_what_was_written_in_order(bench: Bench) -> None:
    topic = _open(bench)
    assert _values(topic) == []
    topic.write([(b"a", b"1"), (b"b", b"2")], SYNCED)
    topic.write([(b"a", b"3"), (b"b", None)], SYNCED)
    bench.restart()
    found = [(entry.key, entry.value, entry.write_pointer) for entry in _open(bench).replay()]
    assert found == [(b"a", b"1", 0), (b"b", b"2", 0), (b"a", b"3", 0), (b"b", None, 0)]


def test_a_replay_begins_with_the_last_snapshot(bench: Bench) -> None:
    topic = _open(bench)
    for round_ in range(2):
        _write(topic, b"forgotten")
        bench.clock.pass_ms(1)
        topic.snapshot([[(None, b"%d" % round_), (None, b"b")], [(None, b"c")]])
        _write(topic, b"behind")
        assert _values(topic) == [b"%d" % round_, b"b", b"c", b"behind"]
        bench.restart()
        topic = _open(bench)
        assert _values(topic) == [b"%d" % round_, b"b", b"c", b"behind"]
        assert _values(topic, Position.earliest()) == [b"%d" % round_, b"b", b"c", b"behind"]


def test_what_is_not_older_than_was_asked_stays_before_a_snapshot(bench: Bench) -> None:
    topic = _open(bench)
    for value in (b"old", b"young"):
        _write(topic, value)
        bench.clock.pass_ms(10)
    topic.snapshot([[(None, b"kept")]], before_ms=bench.clock.now_ms() - 15)
    bench.restart()
    topic = _open(bench)
    assert _values(topic) == [b"kept"]
    assert _values(topic, Position.earliest()) == [b"young", b"kept"]


def test_it_is_as_long_as_what_the_next_replay_reads(bench: Bench) -> None:
    topic = _open(bench)
    topic.write([(b"key", b"1"), (None, b"22")], SYNCED)
    topic.write([(b"key", None)], SYNCED)
    assert (topic.length, topic.bytes) == (3, 9)
    bench.restart()
    topic = _open(bench)
    for _ in range(2):
        assert len(list(topic.replay())) == topic.length == 3 and topic.bytes == 9
    bench.clock.pass_ms(1)
    topic.snapshot([[(b"key", b"1")]])
    assert (topic.length, topic.bytes) == (0, 0)  # since the last compaction
    _write(topic, b"1")
    assert (topic.length, topic.bytes) == (1, 1)


def test_nothing_is_replayed_while_a_write_that_failed_is_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write would come later, unknown to earlier readers."""
    bench.store.before = gate = StoreGate()
    topic = _open(bench)
    _write(topic, b"1")
    with gate.holding("write", SEGMENTS):
        leader = in_thread(lambda: _write(topic, b"2"))
        gate.wait_reached()
        monkeypatch.setattr("tms.topics.internal_topic.TIMEOUT_S", 0.01)
        with pytest.raises(TimedOut):
            _write(topic, b"3")
        with pytest.raises(StorageUnavailable, match="under way"):
            _values(topic)
    leader.result(PATIENCE_S)
    until(lambda: all(pending.done() for pending in topic._failed))
    assert _values(topic) == [b"1", b"2", b"3"]


def test_entries_of_transactions_are_given_with_their_pointers(bench: Bench) -> None:
    topic = _open(bench)
    _write(topic, b"0")
    for pointer in (5, 8):
        flags = Flags.TRANSACTIONAL | (Flags.ISSUED if pointer == 8 else 0)
        topic.append([(None, b"%d" % pointer)], SYNCED, Stamp(flags, pointer)).result(PATIENCE_S)
    found = [(entry.value, entry.write_pointer) for entry in topic.replay()]
    assert found == [(b"0", 0), (b"5", 5), (b"8", 8)]


def test_a_partition_is_a_journal_of_its_own(bench: Bench) -> None:
    topics, name = bench.engine.topics, TopicName("system", "_shards")
    journals = [
        InternalTopic(name, topics.registry, topics.partitions, number, 3) for number in range(3)
    ]
    for number, journal in enumerate(journals):
        _write(journal, b"before")
        _write(journal, b"%d" % number)
    journals[1].snapshot([[(None, b"snapshot")]])
    assert [[entry.value for entry in journal.replay()] for journal in journals] == [
        [b"before", b"0"],
        [b"snapshot"],
        [b"before", b"2"],
    ]
    assert topics.registry.find(name).partitions == 3
