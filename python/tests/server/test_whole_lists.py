"""Whole lists: made by one thread at a time, fresh for a while, and never too old."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from tests.clocks import ManualClock
from tms.errors import Overloaded, Unavailable
from tms.server.whole_lists import FRESH_S, LISTS_MAX, SHARE, WAIT_S, ListKey, WholeLists

KEY = "topics", "default"


class LaterExecutor(Executor):
    """Work that is done when a test likes: at once, or by `run`."""

    def __init__(self) -> None:
        self.at_once = True
        self.waiting: list[Callable[[], object]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def do() -> None:
            done.set_result(work(*args, **more))

        self.waiting.append(do)
        if self.at_once:
            self.run()
        return done

    def run(self) -> None:
        """Do all that waits."""
        while self.waiting:
            self.waiting.pop(0)()


class ListWorld:
    """Lists whose making takes time and is counted; each has the number of its making."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.later = LaterExecutor()
        self.lists = WholeLists(self.clock, self.later)
        self.made = 0
        self.takes_ms = 100

    def read(self) -> list[int]:
        self.made += 1
        self.clock.pass_ms(self.takes_ms)
        return [self.made]

    def get(self, key: ListKey = KEY) -> list[int]:
        return list(self.lists.get(key, self.read))


def fails() -> list[int]:
    raise Unavailable("An instance does not answer.")


@pytest.fixture
def world() -> ListWorld:
    return ListWorld()


def test_a_fresh_list_answers_and_an_old_one_is_made_anew_beside(world: ListWorld) -> None:
    assert world.get() == [1]
    world.later.at_once = False
    world.clock.pass_ms(round(FRESH_S * 1_000))
    assert world.get() == [1] and not world.later.waiting
    world.clock.pass_ms(1)
    assert world.get() == world.get() == [1]
    assert len(world.later.waiting) == 1, "two threads make the same list"
    world.later.run()
    assert world.get() == [2]


def test_a_list_that_is_too_old_is_not_shown(world: ListWorld) -> None:
    world.get()
    world.clock.pass_ms(round(2 * FRESH_S * 1_000) + 1)
    assert world.get() == [2]


def test_making_takes_a_share_of_the_time(world: ListWorld) -> None:
    world.takes_ms = 3_000
    world.get()
    world.later.at_once = False
    world.clock.pass_ms(round(3_000 / SHARE) - 1)
    assert world.get() == [1] and not world.later.waiting
    world.clock.pass_ms(2)
    assert world.get() == [1] and len(world.later.waiting) == 1


@pytest.mark.parametrize("before", [False, True])
def test_requests_do_not_wait_for_a_list_that_takes_long(world: ListWorld, before: bool) -> None:
    if before:
        world.get()
        world.clock.pass_ms(round(2 * FRESH_S * 1_000) + 1)
    made = world.made
    world.later.at_once = False
    began_s = time.monotonic()
    for _ in range(3):
        with pytest.raises(Overloaded):
            world.get()
    assert time.monotonic() - began_s < 2 * WAIT_S + 1, "those that do not make it do not wait"
    assert len(world.later.waiting) == 1
    world.later.run()
    assert world.get() == [made + 1]


def test_an_error_is_raised_once_and_the_next_request_tries_again(world: ListWorld) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable):
            world.lists.get(KEY, fails)
    assert world.get() == [1]
    world.clock.pass_ms(round(FRESH_S * 1_000) + 1)
    assert world.lists.get(KEY, fails) == [1], "an old list is shown whatever happens beside"
    world.later.at_once = False
    world.clock.pass_ms(round(FRESH_S * 1_000) + 1)
    with pytest.raises(Unavailable):
        world.get()
    world.later.run()
    assert world.get() == [2]


def test_an_error_that_waits_holds_nothing_of_the_list(world: ListWorld) -> None:
    def breaks() -> list[int]:
        some = [1] * 1_000
        raise Unavailable(f"An instance does not answer after {len(some)} entries.")

    world.get()
    world.clock.pass_ms(round(FRESH_S * 1_000) + 1)
    assert world.lists.get(KEY, breaks) == [1]
    [error] = world.lists._errors.values()
    assert error.__traceback__ is None


def test_few_lists_are_kept_and_no_old_ones(world: ListWorld) -> None:
    for nth in range(LISTS_MAX + 2):
        world.get(("topics", f"n{nth}"))
    assert [*world.lists._lists] == [("topics", f"n{nth}") for nth in range(2, LISTS_MAX + 2)]
    world.clock.pass_ms(round(2 * FRESH_S * 1_000) + 1)
    world.get()
    assert [*world.lists._lists] == [KEY]
