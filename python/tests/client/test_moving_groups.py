"""A move of a group's positions whose answer was lost is done if the group stands there; not if its
partitions are others' now, who may stand there, too."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

import tms
from tests.http_kit import serving
from tms.client.committed import KnownPositions
from tms.client.http.exchange import Call
from tms.client.http.transport import HttpTransport
from tms.errors import Conflict, Fenced, TimedOut, TMSError
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange, PositionKey

NAME = TopicName.parse("t")
AT_FIVE = Position.offset(5)
CHANGES = [PositionChange(PositionKey("readers", NAME, 0), AT_FIVE, "")]
BEFORE, LOST = Conflict("It stands elsewhere."), TimedOut("The answer was lost.")
FENCED = Fenced("Another member has the partition.")


class _Port:
    """Loses the answer of the first move, and refuses later ones with `error`."""

    def __init__(self, error: TMSError) -> None:
        self._errors: list[TMSError] = [LOST, error]

    def move(self, changes: Sequence[PositionChange]) -> None:
        raise self._errors.pop(0)

    def positions(self, name: TopicName, group: str) -> dict[int, Position]:
        return {0: AT_FIVE}


def _embedded(error: TMSError, monkeypatch: pytest.MonkeyPatch) -> None:
    move = KnownPositions(NAME, "readers", _Port(error)).move(CHANGES)  # type: ignore[arg-type]
    with pytest.raises(TimedOut):
        move()
    move()


def _http(error: TMSError, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, call = count(), HttpTransport.call

    def first_lost(self: HttpTransport, made: Call[object], *rest: Any) -> object:
        if next(asked):
            return call(self, made, *rest)
        [again] = rest
        assert again(LOST)
        again(error)
        raise error

    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("t")
        groups = bus._transport.groups
        groups.move(CHANGES)
        monkeypatch.setattr(HttpTransport, "call", first_lost)
        groups.move(CHANGES)


@pytest.mark.parametrize("world", [_embedded, _http])
def test_a_move_whose_answer_was_lost_is_done_if_the_group_stands_there(
    world: Callable[[TMSError, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world(BEFORE, monkeypatch)


@pytest.mark.parametrize("world", [_embedded, _http])
def test_a_member_that_lost_its_partition_has_not_moved_it(
    world: Callable[[TMSError, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Fenced):
        world(FENCED, monkeypatch)
