"""Journals of state machines: what is replayed, and from where."""

from collections.abc import Iterator

import pytest

from tests.log_kit import SYNCED, Bench
from tms.block import Flags
from tms.log.groups import Stamp
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import TopicName
from tms.topics.journal import Journal


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


def test_of_transactions_those_entries_count_that_a_judge_admits(bench: Bench) -> None:
    journal, judged = _journal(bench), list[tuple[int, bool]]()
    fates = {5: Fate.VISIBLE, 6: Fate.SKIPPED, 7: Fate.OPEN, 8: Fate.VISIBLE}

    def judge(pointer: int, issued: bool) -> Fate:
        judged.append((pointer, issued))
        return fates[pointer]

    journal.finish(journal.append([b"0"], SYNCED))
    for pointer in fates:
        flags = Flags.TRANSACTIONAL | (Flags.ISSUED if pointer == 8 else 0)
        journal.finish(journal.append([b"%d" % pointer], SYNCED, stamp=Stamp(flags, pointer)))
    found = [(entry.value, entry.write_pointer) for entry in journal.replay(judge)]
    assert found == [(b"0", 0), (b"5", 5), (b"8", 8)]
    assert judged == [(5, False), (6, False), (7, False), (8, True)]
