"""The journaled state machine, over a journal that fails, with and without effect, and is cut.

The state counts: the next number of a counter is decided from the state, so a decision on a wrong
state repeats a number, leaves one out, or leaves the journal.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tms.errors import StorageUnavailable
from tms.log import journaled
from tms.log.journaled import Cells, Journaled, JournalEntry, together
from tms.model.topic import Durability

WRITTEN = Durability.WRITTEN
NAMES = "abc"
State = dict[str, int]
Event = tuple[str, int]


class Failed(Exception):
    """The journal has failed."""


class Interrupted(BaseException):
    """An interrupt by control-C."""


class Counting:
    """The state machine. It is strict, so that no event is applied twice, or too early."""

    def __init__(self) -> None:
        self.events_max = 1  # stored together
        self.before_apply: Callable[[], None] = lambda: None

    def replay(self, entries: Iterator[JournalEntry]) -> State:
        state: State = {}
        first = True  # nothing but a snapshot so far
        for key, value, _ in entries:
            number = int(value or b"")
            name = (key or b"").decode()
            if name[0] == "=":  # of a snapshot
                assert state.get(name[1:], first and number) == number, (
                    "a snapshot is not the state"
                )
                state[name[1:]] = number
            else:
                first = False
                self._raise(state, (name, number))
        return state

    def apply(self, state: State, event: Event) -> None:
        self.before_apply()
        self._raise(state, event)

    def _raise(self, state: State, event: Event) -> None:
        name, number = event
        assert number == state.get(name, 0) + 1, f"{name}: {number} after {state}"
        state[name] = number

    def encode(self, events: Sequence[Event]) -> Iterator[list[Cells]]:
        cells: list[Cells] = [(name.encode(), b"%d" % number) for name, number in events]
        for at in range(0, len(cells), self.events_max):
            yield cells[at : at + self.events_max]

    def snapshot(self, state: State) -> Iterator[Event]:
        return (("=" + name, number) for name, number in state.items())


class FaultyJournal:
    """A journal in memory. Each of the coming writes takes one of `faults`."""

    def __init__(self) -> None:
        self.entries: list[Cells] = []
        self.start = 0
        self.faults: list[str] = []
        self.during: Callable[[], None] = lambda: None

    def write(self, entries: Sequence[Cells], durability: Durability) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            raise Failed
        self.entries += entries
        self.during()
        if fault:
            raise Interrupted if fault == "interrupted" else Failed

    def replay(self) -> Iterator[JournalEntry]:
        for key, value in self.entries[self.start :]:
            self.during()
            yield JournalEntry(key, value, 0)

    def snapshot(self, entries: Iterable[Sequence[Cells]], before_ms: int | None) -> None:
        first = len(self.entries)
        for some in entries:
            self.write(some, Durability.SYNCED)
        if self.faults and self.faults.pop(0):
            raise Failed  # before the write begins
        self.start = first if len(self.entries) > first else self.start


def opened(
    journal: FaultyJournal, machine: Counting | None = None
) -> tuple[Journaled[State, Event], Counting]:
    machine = machine or Counting()
    return Journaled[State, Event](journal, machine), machine


def raised(state: State, *names: str) -> list[Event]:
    """The decision: each counter once more."""
    after = dict(state)
    for name in names:
        after[name] = after.get(name, 0) + 1
    return [(name, after[name]) for name in dict.fromkeys(names)]


FAULTS = st.lists(st.sampled_from(["", "lost", "stored", "interrupted"]), max_size=4)


class JournaledStates(RuleBasedStateMachine):
    """Every possible operation, with the journal as the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = FaultyJournal()
        self.acknowledged: State = {}
        self.crash()

    @rule()
    def crash(self) -> None:
        """Let the process die; events that were only noted are lost."""
        self.journal.faults.clear()
        self.journaled, self.machine = opened(self.journal)
        self.noted: State = {}

    @rule(events_max=st.integers(1, 3))
    def bound(self, events_max: int) -> None:
        self.machine.events_max = events_max

    @rule()
    def load(self) -> None:
        self.loaded()

    def loaded(self) -> State:
        before, state = self.journaled.known, self.journaled.load()
        if not before:
            self.noted.clear()
        return state

    @rule()
    def invalidate(self) -> None:
        self.journaled.invalidate()

    @rule(times=st.integers(1, 4))
    def invalidate_while_it_is_read(self, times: int) -> None:
        """A replay may be older than the invalidation, so the journal is read again; not for
        ever."""
        self.journaled.invalidate()
        left = times
        entries = len(self.journal.entries) > self.journal.start

        def during() -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                self.journaled.invalidate()

        self.journal.during = during
        try:
            self.loaded()
        except StorageUnavailable:
            assert times >= journaled.LOADS_MAX and not self.journaled.known
        else:
            assert left <= 0 or not entries
        finally:
            self.journal.during = lambda: None

    @rule(names=st.sets(st.sampled_from(NAMES)), faults=FAULTS, invalid=st.booleans())
    def write(self, names: set[str], faults: list[str], invalid: bool) -> None:
        events = raised(self.loaded(), *sorted(names))
        self.journal.faults = list(faults)
        if invalid:
            self.journal.during = self.journaled.invalidate
        applied = []
        try:
            self.journaled.write(events, WRITTEN, [lambda: applied.append(True)])
        except (Failed, Interrupted):
            assert not self.journaled.known and not applied
        else:
            self.acknowledged |= {**self.noted, **dict(events)}
            self.noted.clear()
            assert applied and self.journaled.state.items() >= dict(events).items()
        finally:
            self.journal.faults.clear()
            self.journal.during = lambda: None

    @rule(name=st.sampled_from(NAMES))
    def interrupt_before_it_is_applied(self, name: str) -> None:
        events = raised(self.loaded(), name)

        def interrupt() -> None:
            raise Interrupted

        self.machine.before_apply = interrupt
        with pytest.raises(Interrupted):
            self.journaled.write(events, WRITTEN)
        self.machine.before_apply = lambda: None
        assert not self.journaled.known

    @rule(name=st.sampled_from(NAMES))
    def note(self, name: str) -> None:
        ((_, number),) = events = raised(self.loaded(), name)
        self.journaled.note(events[0])
        self.noted[name] = number

    @precondition(lambda self: not self.journaled.known)
    @rule(name=st.sampled_from(NAMES))
    def decide_upon_what_is_not_known(self, name: str) -> None:
        before = list(self.journal.entries)
        with pytest.raises(StorageUnavailable):
            self.journaled.write([(name, 1)], WRITTEN)
        with pytest.raises(StorageUnavailable):
            self.journaled.note((name, 1))
        assert self.journal.entries == before

    @rule(faults=FAULTS, together_bytes=st.integers(1, 8))
    def shorten(self, faults: list[str], together_bytes: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journaled, "SNAPSHOT_BYTES", together_bytes)
            if not self.journaled.known:
                self.noted.clear()
            self.journal.faults = list(faults)
            try:
                self.journaled.snapshot(self.machine.snapshot)
            except (Failed, Interrupted):
                assert not self.journaled.known
            else:
                self.acknowledged |= self.noted
                self.noted.clear()
                left, state = self.journal.entries[self.journal.start :], self.journaled.state
                assert len(left) == len(state) or not state
            finally:
                self.journal.faults.clear()

    @invariant()
    def the_state_is_the_journal_and_what_was_noted(self) -> None:
        replayed = Counting().replay(self.journal.replay())
        if self.journaled.known:
            assert self.journaled.state == {**replayed, **self.noted}
        assert all(replayed.get(name, 0) >= number for name, number in self.acknowledged.items())


JournaledStates.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestJournaledStates = JournaledStates.TestCase


def test_what_was_noted_is_journaled_once_and_first() -> None:
    journal = FaultyJournal()
    counters, machine = opened(journal)
    machine.events_max = 2
    counters.load()
    counters.note(("a", 1))
    counters.note(("a", 2))
    assert journal.entries == [] and counters.state == {"a": 2}
    counters.write([("b", 1)], WRITTEN)
    counters.write([], WRITTEN)
    assert journal.entries == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]


def test_what_was_noted_is_forgotten_by_a_load() -> None:
    """The write that would have included it may have failed for good."""
    journal = FaultyJournal()
    counters, _ = opened(journal)
    counters.load()
    counters.note(("a", 1))
    counters.invalidate()
    assert counters.load() == {}
    counters.write([("b", 1)], WRITTEN)
    assert journal.entries == [(b"b", b"1")]


def test_readers_see_the_state_before_until_the_journal_has_what_follows() -> None:
    journal = FaultyJournal()
    counters, _ = opened(journal)
    counters.load()
    seen: list[State] = []
    journal.during = lambda: seen.append(dict(counters.state))
    counters.write([("a", 1)], WRITTEN)
    assert seen == [{}] and counters.state == {"a": 1}


def test_entries_of_a_snapshot_are_written_together_as_far_as_they_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journaled, "SNAPSHOT_BYTES", 4)
    entries: list[Cells] = [
        (b"a", b"1"),
        (None, b"22"),
        (b"b", None),
        (b"long", b"longer"),
        (b"", b""),
    ]
    assert [len(some) for some in together(entries)] == [2, 1, 1, 1]
    assert [one for some in together(entries) for one in some] == entries
    assert list(together([])) == []
