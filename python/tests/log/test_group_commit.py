"""Group commit: every request is written once, in order, and no request waits for ever."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

from tests.waiting import PATIENCE_S
from tms.log import group_commit
from tms.log.group_commit import GroupCommit, Lead


class Place:
    """The log to which requests are written; its background runs on demand."""

    def __init__(self, size_of: Callable[[int], int] | None = None, bytes_max: int = 0) -> None:
        self.turn = threading.Lock()
        self.groups: list[list[int]] = []
        self.answered: list[int] = []
        self.threads: list[int] = []
        self.background: list[Callable[[], None]] = []
        self.before: Callable[[], None] = lambda: None
        self.commits = GroupCommit[int](
            self.turn, self.write, self.background.append, self.answer, size_of, bytes_max
        )

    def write(self, group: Sequence[int]) -> None:
        assert self.turn.locked()
        self.groups.append(list(group))
        self.threads.append(threading.get_ident())
        self.before()

    def answer(self, group: Sequence[int]) -> None:
        assert not self.turn.locked() or len(self.threads) > 1
        self.answered += group

    def run_background(self) -> None:
        while self.background:
            self.background.pop(0)()


@pytest.mark.parametrize("lead", [Lead.IF_FREE, Lead.YES])
def test_a_lone_request_is_written_by_its_own_thread(lead: Lead) -> None:
    place = Place()
    for number in range(3):
        assert place.commits.submit(number, lead)
    assert place.groups == [[0], [1], [2]] and place.answered == [0, 1, 2]
    assert not place.background and not place.commits.busy and not place.turn.locked()


def test_who_may_not_write_leaves_it_to_the_background() -> None:
    place = Place()
    assert place.commits.submit(0, Lead.NO)
    assert place.commits.submit(1, Lead.YES)  # the group has a leader by now
    assert not place.commits.try_lead()  # although the turn is free
    assert place.groups == [] and len(place.commits) == 2
    place.run_background()
    assert place.groups == [[0, 1]] and not place.commits.busy


def test_who_would_have_to_wait_for_the_turn_leaves_it_to_the_background() -> None:
    place = Place()
    with place.turn:
        place.commits.submit(0, Lead.IF_FREE)
    assert place.groups == []
    place.run_background()
    assert place.groups == [[0]]


def test_what_comes_meanwhile_is_written_together_by_the_background() -> None:
    """A caller writes one group, and never works for others for ever."""
    place = Place()

    def others() -> None:
        place.before = lambda: None
        for number in (1, 2, 3):
            place.commits.submit(number, Lead.YES)

    place.before = others
    place.commits.submit(0, Lead.YES)
    assert place.groups == [[0]] and len(place.background) == 1
    place.run_background()
    assert place.groups == [[0], [1, 2, 3]] and not place.commits.busy


def test_a_group_takes_no_more_than_it_may_but_at_least_one() -> None:
    place = Place(size_of=lambda number: number, bytes_max=10)
    for number in (4, 5, 1, 1, 30, 9, 2):
        place.commits.submit(number, Lead.NO)
    place.run_background()
    assert place.groups == [[4, 5, 1], [1], [30], [9], [2]]


def test_a_request_that_never_waits_is_written_between_lead_and_led() -> None:
    place = Place()
    assert place.commits.try_lead() and place.turn.locked()
    assert not place.commits.try_lead()
    place.commits.submit(1, Lead.YES)  # which does not wait for the turn
    assert place.groups == []
    place.commits.led()
    place.run_background()
    assert place.groups == [[1]] and not place.commits.busy
    with place.turn:
        assert not place.commits.try_lead()
    assert not place.commits.busy


def test_what_waits_can_be_written_by_any_thread() -> None:
    place = Place()
    place.commits.submit(0, Lead.NO)
    assert place.commits.write_what_waits(PATIENCE_S) and place.groups == [[0]]
    place.run_background()  # no request is left
    assert place.groups == [[0]] and not place.commits.busy
    with place.turn:
        assert not place.commits.write_what_waits(0.01)


def test_what_waited_when_it_was_closed_is_written_and_nothing_more_is_taken() -> None:
    place = Place()
    place.commits.submit(0, Lead.NO)
    place.commits.close()
    assert not place.commits.submit(1, Lead.YES) and not place.commits.try_lead()
    place.run_background()
    assert not place.commits.try_lead() and not place.turn.locked()
    assert place.groups == [[0]]


def test_a_thread_makes_room_after_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ROUNDS_MAX", 2)
    place = Place(size_of=lambda _: 1, bytes_max=1)
    for number in range(5):
        place.commits.submit(number, Lead.NO)
    ran = 0
    while place.background:
        place.background.pop(0)()
        ran += 1
        assert len(place.groups) <= 2 * ran
    assert place.groups == [[0], [1], [2], [3], [4]] and ran == 3


@pytest.mark.parametrize("lead", [Lead.NO, Lead.YES])
def test_who_is_interrupted_leaves_nobody_without_a_leader(lead: Lead) -> None:
    place = Place()

    def interrupt() -> None:
        place.before = lambda: None
        place.commits.submit(1, Lead.YES)
        raise KeyboardInterrupt

    place.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        place.commits.submit(0, lead)
        place.run_background()
    place.run_background()
    assert place.groups == [[0], [1]] and place.answered == [0, 1]
    assert not place.commits.busy and not place.turn.locked()


def test_without_a_thread_left_the_caller_does_it() -> None:
    written: list[int] = []

    def none_left(_: Callable[[], None]) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    commits = GroupCommit[int](threading.Lock(), written.extend, none_left)
    commits.submit(0, Lead.NO)
    commits.submit(1, Lead.NO)
    assert written == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_each_request_of_many_threads_is_written_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(group_commit, "ROUNDS_MAX", random.randint(1, 64))
    written: list[tuple[int, int]] = []
    answered: list[tuple[int, int]] = []
    turn, count, writers = threading.Lock(), 300, 6
    interrupts = random.choice((0.0, 0.05))

    def write(group: Sequence[tuple[int, int]]) -> None:
        written.extend(group)
        if random.random() < interrupts:
            raise KeyboardInterrupt

    def run(one: Callable[[], None]) -> None:
        pool.submit(swallow, one)

    def swallow(one: Callable[[], None]) -> None:
        with suppress(KeyboardInterrupt):
            one()

    def many(thread: int) -> None:
        for number in range(count):
            with suppress(KeyboardInterrupt):
                commits.submit((thread, number), random.choice(list(Lead)))

    with ThreadPoolExecutor(3) as pool:
        commits = GroupCommit[tuple[int, int]](turn, write, run, answered.extend)
        threads = [threading.Thread(target=many, args=(n,)) for n in range(writers)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(PATIENCE_S)
        pool.shutdown()  # once every begun request has ended
    assert sorted(written) == sorted(answered)
    for thread in range(writers):
        assert [number for of, number in written if of == thread] == list(range(count))


def test_a_joining_caller_writes_waiting_requests_unless_another_has() -> None:
    place = Place()
    place.commits.join(0)
    place.commits.join(1)
    assert place.groups == [] and not place.commits.busy and not place.background
    assert place.commits.write_what_waits(PATIENCE_S, lambda: 0 in place.answered)
    assert place.groups == [[0, 1]]
    place.commits.join(2)
    assert place.commits.write_what_waits(PATIENCE_S, lambda: 1 in place.answered)
    assert place.groups == [[0, 1]] and not place.turn.locked()  # 2 is left to its caller
    assert place.commits.write_what_waits(PATIENCE_S, lambda: 2 in place.answered)
    assert place.groups == [[0, 1], [2]]
