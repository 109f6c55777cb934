"""The reason why a partition has one owner at a time: for every rule under which all instances
write into one partition, a search finds a run in which a reader misses an acknowledged message
(decision 0021).

    take      a writer gives a message the id (its clock, itself)
    store     the message is in the shared store, and acknowledged
    announce  a writer promises to give no id below its clock
    remove    a silent writer is left out
    read      the reader takes what the rule shows it behind its position, in the order of ids

The search is breadth first, so the run that it finds is the shortest. Clocks differ by one.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

WRITERS, CLOCKS = 2, (0, 1)  # how far each clock is ahead
STEPS_MAX, TIME_MAX = 10, 4
Id = tuple[int, int]


@dataclass(frozen=True)
class Rule:
    """The messages that a reader sees, and the treatment of a silent writer."""

    wait: int | None = 0  # the age of readable ids; None: below what every writer has announced
    removes: bool = False  # silent writers, so that readers go on
    fences: bool = False  # blocks stored by a removed writer are never acknowledged, and never read


@dataclass(frozen=True)
class Run:
    now: int = 0
    held: tuple[Id | None, ...] = (None,) * WRITERS  # taken, not yet stored
    last: tuple[int, ...] = (-1,) * WRITERS
    announced: tuple[int, ...] = (0,) * WRITERS
    removed: frozenset[int] = frozenset()
    stored: frozenset[Id] = frozenset()  # and acknowledged
    read: tuple[Id, ...] = ()

    def clock(self, writer: int) -> int:
        return max(self.now + CLOCKS[writer], self.last[writer] + 1)

    def shown(self, rule: Rule) -> list[Id]:
        """The messages that a read gets now."""
        below = self.now - (rule.wait or 0) + 1 + max(CLOCKS)
        if rule.wait is None:
            listed = [w for w in range(WRITERS) if w not in self.removed]
            below = min((self.announced[w] for w in listed), default=TIME_MAX + 9)
        elif rule.wait:
            below = self.now - rule.wait
        behind = self.read[-1] if self.read else (-1, -1)
        return [id for id in sorted(self.stored) if behind < id and id[0] < below]

    def is_missed(self) -> bool:
        """True if an acknowledged message lies before the reader's position and was not read."""
        return any(id <= self.read[-1] and id not in self.read for id in self.stored if self.read)


def steps(run: Run, rule: Rule) -> Iterator[tuple[str, Run]]:
    """The possible next steps."""
    if run.now < TIME_MAX:
        yield "time goes on", replace(run, now=run.now + 1)
    for writer in range(WRITERS):
        id = run.held[writer]
        if id is None:
            id = (run.clock(writer), writer)
            held = _with(run.held, writer, id)
            yield (
                f"{writer} takes {id}",
                replace(run, held=held, last=_with(run.last, writer, id[0])),
            )
            announced = _with(run.announced, writer, run.clock(writer))
            yield f"{writer} announces", replace(run, announced=announced)
        else:
            counts = not (rule.fences and writer in run.removed)
            stored = run.stored | {id} if counts else run.stored
            held = _with(run.held, writer, None)
            yield f"{writer} stores {id}", replace(run, held=held, stored=stored)
        if rule.removes and writer not in run.removed:
            yield f"{writer} is removed", replace(run, removed=run.removed | {writer})
    if shown := run.shown(rule):
        yield f"the reader gets {shown}", replace(run, read=(*run.read, *shown))


def counter_example(rule: Rule) -> list[str] | None:
    """The shortest run in which the reader misses a message."""
    start = Run()
    known, waiting = {start}, deque([(start, list[str]())])
    while waiting:
        run, trace = waiting.popleft()
        for step, following in steps(run, rule):
            if following.is_missed():
                return [*trace, step]
            if following not in known and len(trace) < STEPS_MAX:
                known.add(following)
                waiting.append((following, [*trace, step]))
    return None


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(Rule(), id="readers get everything that is stored"),
        pytest.param(Rule(wait=1), id="readers wait as long as clocks differ"),
        pytest.param(Rule(wait=2), id="readers wait longer than that"),
        pytest.param(Rule(wait=None, removes=True), id="readers wait for announcements"),
    ],
)
def test_without_a_fence_a_reader_misses_an_acknowledged_message(rule: Rule) -> None:
    trace = counter_example(rule)
    assert trace is not None and "stores" in trace[-1], trace


def test_a_paused_writer_is_enough_however_long_readers_wait() -> None:
    trace = counter_example(Rule(wait=2))
    assert trace is not None
    writers = {step[0] for step in trace if " takes " in step}
    assert len(writers) == 2 and sum(step == "time goes on" for step in trace) >= 2, trace


@pytest.mark.parametrize("removes", [False, True])
def test_with_announcements_and_a_fence_nothing_is_missed(removes: bool) -> None:
    assert counter_example(Rule(wait=None, removes=removes, fences=removes)) is None


def test_then_one_silent_writer_keeps_all_messages_from_all_readers() -> None:
    """The cost: messages that others have stored and acknowledged are not shown."""
    run, rule = Run(), Rule(wait=None)
    for _ in range(TIME_MAX):
        run = replace(run, now=run.now + 1)
        run = replace(run, stored=run.stored | {(run.clock(1), 1)}, last=(-1, run.clock(1)))
        run = replace(run, announced=_with(run.announced, 1, run.clock(1)))
        assert run.shown(rule) == []
    assert replace(run, removed=frozenset((0,))).shown(rule) == sorted(run.stored)


def _with(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
