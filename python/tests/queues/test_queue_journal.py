"""The journal of queues: added edits are stored in order and whole, or fail with their term."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import cast

import pytest

from tests.waiting import PATIENCE_S
from tms.errors import StorageUnavailable, TimedOut, TMSError
from tms.log.journaled import Cells, JournalEntry
from tms.model.topic import Durability
from tms.queues import journal as queue_journal
from tms.queues.journal import QueueJournal, QueueWrite
from tms.topics.internal_topic import InternalTopic

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED


class Topic:
    """A topic in memory. Each write takes one of `faults`: `stored` says whether it is there."""

    def __init__(self) -> None:
        self.writes: list[tuple[list[Cells], Durability]] = []
        self.faults: Iterator[BaseException | None] = iter(())
        self.stored = True

    def write(self, entries: Sequence[Cells], durability: Durability) -> None:
        fault = next(self.faults, None)
        if fault is None or self.stored:
            self.writes.append((list(entries), durability))
        if fault is not None:
            raise fault

    def replay(self) -> Iterator[JournalEntry]:
        for entries, _ in list(self.writes):
            yield from (JournalEntry(*entry, 0) for entry in entries)


class Replayed:
    """A journal over such a topic, and the edits of its last replay."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.values: list[bytes | None] = []
        self.journal = QueueJournal(cast(InternalTopic, self.topic), self._replay)
        self.journal.load()

    def _replay(self, entries: Iterator[JournalEntry]) -> None:
        assert self.journal.turn.locked(), "nothing is written meanwhile"
        self.values = [entry.value for entry in entries]

    def add(self, *values: bytes, durability: Durability = WRITTEN) -> QueueWrite:
        return self.journal.add([(b"key", value) for value in values], durability)

    @property
    def stored(self) -> list[bytes | None]:
        return [value for entries, _ in self.topic.writes for _, value in entries]


def test_what_is_added_meanwhile_is_one_write_as_durable_as_the_strongest() -> None:
    one = Replayed()
    writes = [one.add(b"1"), one.add(b"2", b"3", durability=SYNCED), one.add(b"4"), one.add()]
    for write in reversed(writes):
        one.journal.wait(write)
        assert all(each.done for each in writes)  # and no request has to be repeated
    ((entries, durability),) = one.topic.writes
    assert [value for _, value in entries] == [b"1", b"2", b"3", b"4"] and durability is SYNCED
    one.journal.wait(one.add())  # nothing to write
    assert len(one.topic.writes) == 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_write_fails_all_edits_until_the_journal_is_read_again(
    stored: bool,
) -> None:
    one = Replayed()
    one.topic.faults, one.topic.stored = iter([TMSError("The disk is away.")]), stored
    first, second = one.add(b"1"), one.add(b"2")
    with pytest.raises(TMSError, match="disk is away"):
        one.journal.wait(second)
    with pytest.raises(TMSError, match="disk is away"):
        one.journal.wait(first)
    assert not one.journal.journaled.known
    with pytest.raises(StorageUnavailable):
        one.add(b"3")
    one.journal.load()
    assert one.values == ([b"1", b"2"] if stored else [])
    one.journal.wait(one.add(b"4"))
    assert one.stored == [*one.values, b"4"]


def test_what_was_added_before_an_invalidation_is_never_stored_also_after_a_load() -> None:
    one = Replayed()
    before = one.add(b"before")
    one.journal.journaled.invalidate()
    one.journal.load()
    behind = one.add(b"behind")
    with pytest.raises(StorageUnavailable, match="read again"):
        one.journal.wait(before)
    one.journal.wait(behind)
    assert one.stored == [b"behind"]


def test_who_is_interrupted_while_it_writes_leaves_nobody_with_a_wrong_answer() -> None:
    one = Replayed()
    one.topic.faults = iter([KeyboardInterrupt()])
    first, second = one.add(b"1"), one.add(b"2")
    with pytest.raises(KeyboardInterrupt):
        one.journal.wait(first)
    with pytest.raises(StorageUnavailable):
        one.journal.wait(second)
    assert not one.journal.journaled.known


def test_waiting_for_the_turn_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Replayed()
    write = one.add(b"1")
    monkeypatch.setattr(queue_journal, "WRITE_TIMEOUT_S", 0.01)
    with one.journal.turn, pytest.raises(TimedOut):
        one.journal.wait(write)
    one.journal.wait(write)
    assert one.stored == [b"1"]


@pytest.mark.parametrize("seed", range(6))
def test_answers_to_many_threads_are_true(seed: int) -> None:
    """Each thread decides under a lock of its own, as queues do, and reads unknown outcomes
    again."""
    random = Random(seed)
    one, told = Replayed(), list[bytes]()
    one.topic.stored = bool(seed % 2)
    away = TMSError("The disk is away.")
    one.topic.faults = (away if random.random() < 0.1 else None for _ in iter(int, 1))

    def work(name: int) -> None:
        for number in range(150):
            values = [b"%d/%d/%d" % (name, number, part) for part in range(2)]
            with suppress(TMSError):
                if not one.journal.journaled.known:
                    one.journal.load()
                one.journal.wait(one.add(*values))
                told.extend(values)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    stored = [value for value in one.stored if value is not None]
    assert len(stored) == len(set(stored)) and set(told) <= set(stored)
    for name in range(4):
        mine = [value for value in stored if value.startswith(b"%d/" % name)]
        numbers = [tuple(map(int, value.split(b"/"))) for value in mine]
        assert numbers == sorted(numbers) and len(numbers) % 2 == 0
    for entries, _ in one.topic.writes:
        assert len(entries) % 2 == 0, "what was added together is stored together"
    assert told
