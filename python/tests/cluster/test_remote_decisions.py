"""An instance that does not coordinate learns the ends of transactions whatever happens to one of
those that wait for them."""

import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from tests.clocks import ManualClock
from tests.waiting import PATIENCE_S
from tms.api.instances import PeersApi
from tms.cluster.remote_decisions import RemoteDecisions
from tms.errors import Unavailable
from tms.model.snapshot import Fate

LIFETIME_MS = 1_000


class Coordinator:
    """A coordinator that has committed everything, once it `answers`."""

    def __init__(self) -> None:
        self.answers = True

    def fates(self, pointers: Sequence[int]) -> dict[int, Fate]:
        if not self.answers:
            raise Unavailable("The coordinator has just gone.")
        return dict.fromkeys(pointers, Fate.VISIBLE)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def decisions(coordinator: Coordinator) -> RemoteDecisions:
    return RemoteDecisions(lambda: cast(PeersApi, coordinator), ManualClock(), LIFETIME_MS)


def fail() -> None:
    raise ZeroDivisionError


def is_told(decisions: RemoteDecisions, pointer: int) -> bool:
    ended = threading.Event()
    decisions.watch_end(pointer, ended.set)
    return ended.wait(PATIENCE_S)


@pytest.mark.parametrize("answers", [False, True])
def test_a_callback_that_fails_keeps_no_other_from_being_called(
    decisions: RemoteDecisions, coordinator: Coordinator, answers: bool
) -> None:
    coordinator.answers = answers
    beside = threading.Event()
    decisions.watch_end(1, fail)
    decisions.watch_end(1, beside.set)
    assert beside.wait(PATIENCE_S)
    assert is_told(decisions, 2)


def test_an_end_is_told_though_no_thread_could_be_started_before(
    decisions: RemoteDecisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        decisions.watch_end(1, fail)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert is_told(decisions, 2)
