"""Leaders of group commits in the simulation of several instances, which is one thread: they wait
for a turn that a waiting step holds, but only if that step waits briefly."""

import pytest

from sim.bounds.drawing import Bounds
from sim.instances import BRIEF_S, ClusterWorld, SingleLock
from sim.world import Stuck
from tms.errors import TimedOut
from tms.log.group_commit import GroupCommit, Lead
from tms.log.pending import Pending


class Log:
    """Requests to one log of an instance, written by leaders in the background."""

    def __init__(self) -> None:
        self.world, self.turn = ClusterWorld(1, (), Bounds()), SingleLock()
        self.submit = self.world.instances[0].background.submit
        self.written: list[str] = []
        self.commits = GroupCommit(self.turn, self.written.extend, self.submit)

    def wait_with_turn(self, timeout_s: float | None) -> None:
        """With the turn, submit a request and wait for something that never comes."""
        with self.turn:
            self.commits.submit("request", Lead.NO)
            with pytest.raises(TimedOut):
                Pending(1).result(timeout_s)
            assert not self.written

    def run(self) -> None:
        """Run all background work."""
        while self.world.background.run():
            pass


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_leader_waits_for_a_turn_whose_holder_waits_briefly(log: Log) -> None:
    log.world.step(lambda: log.wait_with_turn(BRIEF_S))
    assert not log.written
    log.run()
    assert log.written == ["request"]


def test_a_brief_wait_within_another_one_does_not_lose_the_leader(log: Log) -> None:
    def step() -> None:
        log.submit(wait)
        log.wait_with_turn(BRIEF_S)

    def wait() -> None:
        with pytest.raises(TimedOut):
            Pending(1).result(BRIEF_S)

    log.world.step(step)
    log.run()
    assert log.written == ["request"]


@pytest.mark.parametrize("timeout_s", [None, 2 * BRIEF_S])
def test_a_long_wait_with_a_turn_for_which_a_leader_waits_is_an_error(
    log: Log, timeout_s: float | None
) -> None:
    log.world.step(lambda: log.wait_with_turn(BRIEF_S))
    with pytest.raises(Stuck, match="held below on the stack"):
        log.world.step(lambda: log.wait_with_turn(timeout_s))


def test_a_turn_that_is_never_released_is_an_error(log: Log) -> None:
    def forget() -> None:
        log.turn.acquire()
        log.commits.submit("request", Lead.NO)

    log.world.step(forget)
    with pytest.raises(Stuck, match="held below on the stack"):
        log.run()
