"""Journals of state machines: what is replayed, and from where."""

from collections.abc import Iterator

import pytest

from tests.log_kit import SYNCED, Bench
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.topic.journal import Journal


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


def _journal(bench: Bench) -> Journal:
    engine = bench.engine
    name = TopicName("system", "_test")
    return Journal(name, engine._registry, engine._partitions, engine._publisher)


def _values(journal: Journal, start: Position | None = None) -> list[bytes | None]:
    return [entry.value for entry in journal.replay(start=start)]


def test_a_journal_gives_what_was_appended_in_order(bench: Bench) -> None:
    journal = _journal(bench)
    assert _values(journal) == []
    journal.finish(journal.append([b"1", b"2"], SYNCED, [b"a", b"b"]))
    journal.finish(journal.append([b"3", None], SYNCED, [b"a", b"b"]))
    bench.restart()
    found = [(entry.key, entry.value, entry.write_pointer) for entry in _journal(bench).replay()]
    assert found == [(b"a", b"1", 0), (b"b", b"2", 0), (b"a", b"3", 0), (b"b", None, 0)]


def test_a_journal_begins_with_what_was_kept_last(bench: Bench) -> None:
    journal = _journal(bench)
    for round_ in range(2):
        journal.finish(journal.append([b"forgotten"], SYNCED))
        bench.clock.pass_ms(1)
        journal.keep([[b"%d" % round_, b"b"], [b"c"]])
        journal.finish(journal.append([b"behind"], SYNCED))
        assert _values(journal) == [b"%d" % round_, b"b", b"c", b"behind"]
        bench.restart()
        journal = _journal(bench)
        assert _values(journal) == [b"%d" % round_, b"b", b"c", b"behind"]
        assert _values(journal, Position.earliest()) == [b"%d" % round_, b"b", b"c", b"behind"]


def test_what_is_not_older_than_was_asked_stays_before_what_was_kept(bench: Bench) -> None:
    journal = _journal(bench)
    for value in (b"old", b"young"):
        journal.finish(journal.append([value], SYNCED))
        bench.clock.pass_ms(10)
    journal.keep([[b"kept"]], before_ms=bench.clock.now_ms() - 15)
    bench.restart()
    journal = _journal(bench)
    assert _values(journal) == [b"kept"]
    assert _values(journal, Position.earliest()) == [b"young", b"kept"]
