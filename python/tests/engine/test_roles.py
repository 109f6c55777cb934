"""A role is held as a whole or not at all, whichever threads open, lose and use it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from tests.clocks import ManualClock
from tests.waiting import PATIENCE_S
from tms.engine.engine import Engine
from tms.engine.roles import Role
from tms.errors import NotOwner, StorageUnavailable, TMSError, Unavailable
from tms.model.topic import TopicName, TopicSettings
from tms.store.memory import MemoryStore

NAME = "shard 3"
TOPIC = TopicName("default", "t")


class Parts:
    """Parts of a role that note when they are opened and ended."""

    def __init__(self) -> None:
        self.open = 0  # parts that are open now
        self.begun = 0
        self.while_opening: Callable[[], object] = lambda: None
        self.while_ending: Callable[[], object] = lambda: None
        self.role = Role(NAME, self.begin, self.end, _missing)

    def begin(self) -> str:
        self.begun += 1
        self.open += 1
        self.while_opening()
        self.open += 1
        return f"parts {self.begun}"

    def end(self, _: str | None) -> None:
        self.while_ending()
        self.open = 0


def _missing() -> TMSError:
    return NotOwner("Another instance holds this role. Ask there.", owner="b")


@pytest.fixture
def parts() -> Parts:
    return Parts()


def _in_thread(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread


def _join(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@contextlib.contextmanager
def _ending(parts: Parts, close: Callable[[], object]) -> Iterator[None]:
    """Within, a thread that closes the open role has begun to end its parts; afterwards the role is
    closed."""
    ending, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        ending.set()
        assert go_on.wait(PATIENCE_S)

    parts.role.open()
    parts.while_ending = wait
    closing = _in_thread(close)
    assert ending.wait(PATIENCE_S)
    yield
    go_on.set()
    _join(closing)


def test_a_role_that_is_not_held_raises_the_error_that_names_its_owner(parts: Parts) -> None:
    with pytest.raises(NotOwner, match="Ask there"):
        parts.role.get()
    parts.role.open()
    assert parts.role.get() == parts.role.held == "parts 1"
    parts.role.close()
    with pytest.raises(NotOwner, match="Ask there"):
        parts.role.get()


def test_a_held_role_is_not_opened_again(parts: Parts) -> None:
    parts.role.open()
    parts.role.open()
    assert (parts.begun, parts.open) == (1, 2)


def test_a_role_that_is_partly_open_is_not_held(parts: Parts) -> None:
    seen: list[str | None] = []
    parts.while_opening = lambda: seen.append(parts.role.held)
    parts.role.open()
    assert seen == [None]


def test_an_opening_that_fails_leaves_nothing_open_and_is_remembered(parts: Parts) -> None:
    parts.while_opening = Mock(side_effect=StorageUnavailable("The disk is full."))
    with pytest.raises(StorageUnavailable):
        parts.role.open()
    assert parts.open == 0 and parts.role.held is None
    assert isinstance(parts.role.failure, StorageUnavailable)
    parts.while_opening = lambda: None
    parts.role.open()
    assert parts.role.failure is None and parts.role.held == "parts 2"


def test_a_bug_in_an_opening_leaves_nothing_open(parts: Parts) -> None:
    parts.while_opening = Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        parts.role.open()
    assert parts.open == 0 and parts.role.failure is None
    parts.while_opening = lambda: None
    parts.role.open()
    assert parts.role.held


def test_a_role_that_is_closed_forgets_why_it_could_not_be_opened(parts: Parts) -> None:
    parts.while_opening = Mock(side_effect=StorageUnavailable("The disk is full."))
    with pytest.raises(StorageUnavailable):
        parts.role.open()
    parts.role.close()
    assert parts.role.failure is None


def test_a_role_that_is_lost_while_it_is_opened_is_not_held(parts: Parts) -> None:
    parts.while_opening = parts.role.close
    with pytest.raises(Unavailable, match="lost while it was opened: shard 3"):
        parts.role.open()
    assert parts.open == 0 and parts.role.held is None
    parts.while_opening = lambda: None
    parts.role.open()
    assert parts.role.held == "parts 2"


def test_an_error_that_the_loss_of_a_role_causes_says_that_it_was_lost(parts: Parts) -> None:
    def lose_and_fail() -> None:
        parts.role.close()
        raise NotOwner("The journal has another owner.", owner="b")

    parts.while_opening = lose_and_fail
    with pytest.raises(Unavailable, match="lost while it was opened"):
        parts.role.open()
    assert parts.open == 0


def test_closing_does_not_wait_for_an_opening(parts: Parts) -> None:
    opening, go_on, errors = threading.Event(), threading.Event(), list[TMSError]()

    def wait() -> None:
        opening.set()
        assert go_on.wait(PATIENCE_S)

    def open_role() -> None:
        try:
            parts.role.open()
        except TMSError as error:
            errors.append(error)

    parts.while_opening = wait
    thread = _in_thread(open_role)
    assert opening.wait(PATIENCE_S)
    parts.role.close()
    assert parts.open == 0  # also what the opening had opened by then
    go_on.set()
    _join(thread)
    assert parts.open == 0 and parts.role.held is None
    assert [type(error) for error in errors] == [Unavailable]


@pytest.mark.parametrize("lost", [False, True])
def test_of_two_threads_that_open_at_once_one_is_refused(parts: Parts, lost: bool) -> None:
    """Also if the first opening is lost: its end must not end the parts of the second."""
    refused: list[TMSError] = []

    def open_again() -> None:
        if lost:
            parts.role.close()
        try:
            parts.role.open()
        except TMSError as error:
            refused.append(error)

    parts.while_opening = lambda: _join(_in_thread(open_again))
    if lost:
        with pytest.raises(Unavailable):
            parts.role.open()
    else:
        parts.role.open()
    assert [type(error) for error in refused] == [Unavailable] and parts.begun == 1
    assert parts.open == (0 if lost else 2)


def test_every_part_is_ended_when_any_of_two_threads_has_closed_the_role(parts: Parts) -> None:
    left_open: list[int] = []

    def close() -> None:
        parts.role.close()
        left_open.append(parts.open)

    with _ending(parts, close):
        second = _in_thread(close)
        second.join(0.05)
        assert second.is_alive() and not left_open
    _join(second)
    assert left_open == [0, 0]


def test_a_role_is_opened_again_only_after_its_end(parts: Parts) -> None:
    """Else the end of the parts before would end the new ones."""
    with _ending(parts, parts.role.close):
        opening = _in_thread(parts.role.open)
        opening.join(0.05)
        assert parts.begun == 1
    _join(opening)
    assert parts.open == 2 and parts.role.held == "parts 2"


def test_the_end_of_a_role_may_close_it_again(parts: Parts) -> None:
    parts.role.open()
    parts.while_ending = parts.role.close
    parts.role.close()
    assert parts.open == 0 and parts.role.held is None


def test_a_request_keeps_the_parts_that_it_got_before_the_role_was_lost(parts: Parts) -> None:
    parts.role.open()
    held = parts.role.get()
    parts.role.close()
    parts.role.open()
    assert held == "parts 1" and parts.role.get() == "parts 2"


def test_reading_a_role_does_not_wait_while_it_is_closed(parts: Parts) -> None:
    with _ending(parts, parts.role.close), pytest.raises(NotOwner):
        parts.role.get()


@pytest.mark.parametrize("opened", [False, True])
def test_an_instance_that_resigns_keeps_no_role_whose_journal_it_releases(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members may change between its look at the view and its resignation; and the thread that
    opens roles may open one meanwhile."""
    engine = Engine(MemoryStore(), ManualClock())
    engine.create_topic(TOPIC, TopicSettings(1))
    engine.groups.poll(TOPIC, "g", "m")
    held = engine.shards.held
    assert engine.roles.coordinates and held
    cluster = Mock(coordinates=True, **{"shards.return_value": held})
    abandon = engine.topics.partitions.abandon

    def abandon_late(reason: TMSError) -> int:
        if opened:
            engine.shards.open(min(held))
        return abandon(reason)

    monkeypatch.setattr(engine.topics.partitions, "abandon", abandon_late)
    engine.roles.resign(cluster, Unavailable("It does not reach the store."))
    assert not engine.topics.partitions.opened()
    assert not engine.roles.coordinates and not engine.shards.held
