"""The checker of histories: silent about a right one, and never about a wrong one."""

import pytest

from sim.checker import Kind, check
from sim.history import (
    Acknowledged,
    Asked,
    Crashed,
    Done,
    Ended,
    Event,
    Final,
    Found,
    History,
    Read,
    Sent,
)

A, B, OUT = ("a", 0), ("b", 0), ("out", 0)


def right() -> list[Event]:
    """A run in which everything was as it must be: plain messages, a transaction over two
    partitions, one that was aborted, and a group that makes a message of each message."""
    return [
        Sent(1, A, ("p0",), rests_on=""),
        Sent(1, A, ("p1",), rests_on="p0"),
        Acknowledged(2, A, (("01", "p0"), ("02", "p1")), synced=True),
        Sent(3, A, ("t0",), "t"),
        Sent(4, B, ("t1",), "t"),
        Read(5, "r", 0, B, True, "", (), 6, everything=True),
        Asked(7, "t"),
        Ended(8, "t", committed=True),
        Sent(9, A, ("x0",), "x"),
        Ended(10, "x", committed=False),
        Read(11, "r", 0, A, True, "", (("01", "p0"), ("02", "p1"), ("03", "t0")), 12),
        Read(13, "r", 0, B, True, "", (("01", "t1"),), 14),
        Read(15, "r", 0, B, True, "01", (), 16, everything=True),
        Sent(17, OUT, ("o0", "o1", "o2"), "g", ("p0", "p1", "t0")),
        Asked(18, "g", (("group", A, "03"),)),
        Ended(19, "g", committed=True),
        Found(20, "group", A, "03", 21),
        Final(22, A, (("01", "p0"), ("02", "p1"), ("03", "t0"))),
        Final(23, B, (("01", "t1"),)),
        Final(24, OUT, (("01", "o0"), ("02", "o1"), ("03", "o2"))),
        Done(25, "group", A, "03", "out"),
    ]


def without(events: list[Event], at: int, *instead: Event) -> list[Event]:
    """The events, with others in place of those at this moment."""
    place = next(number for number, event in enumerate(events) if event.at == at)
    after = [event for event in events[place:] if event.at != at]
    return [*events[:place], *instead, *after]


def kinds(events: list[Event]) -> set[Kind]:
    """What the checker says."""
    return {finding.kind for finding in check(History(events))}


def test_a_right_history_has_no_findings() -> None:
    assert check(History(right())) == []


def test_an_empty_history_has_no_findings() -> None:
    assert check(History()) == []


def test_a_history_survives_being_written_and_read() -> None:
    history = History(right())
    assert History.decode(history.encode()).events == history.events


CORRUPT: dict[str, tuple[Kind, int, tuple[Event, ...]]] = {
    "an acknowledged message is gone": (
        Kind.LOST,
        22,
        (Final(22, A, (("01", "p0"), ("03", "t0"))),),
    ),
    "a committed transaction is gone": (
        Kind.LOST,
        23,
        (Final(23, B, ()),),
    ),
    "a message that was read is gone": (
        Kind.LOST,
        2,
        (Read(2, "other", 0, A, True, "", (("00", "never"),), 3),),
    ),
    "a message is there twice": (
        Kind.DUPLICATE,
        23,
        (Final(23, B, (("01", "t1"), ("02", "t1"))),),
    ),
    "an input was processed twice": (
        Kind.DUPLICATE,
        17,
        (Sent(17, OUT, ("o0", "o1", "o2"), "g", ("p0", "p0", "t0")),),
    ),
    "an input was passed without being processed": (
        Kind.LOST,
        17,
        (Sent(17, OUT, ("o0", "o1", "o2"), "g", ("p0", "p1", "other")),),
    ),
    "an aborted message was read": (
        Kind.ABORTED,
        13,
        (Read(13, "r", 0, A, True, "03", (("04", "x0"),), 14),),
    ),
    "a message was read before its transaction was to be committed": (
        Kind.INTERMEDIATE,
        5,
        (Read(5, "r", 0, B, True, "", (("01", "t1"),), 6),),
    ),
    "a part of a transaction is missing at the end": (
        Kind.TORN,
        23,
        (Final(23, B, ()),),
    ),
    "a reader misses the part of a transaction whose other part was seen": (
        Kind.TORN,
        13,
        (Read(13, "late", 0, B, True, "", (), 14, everything=True),),
    ),
    "a reader went back": (
        Kind.UNSTABLE,
        11,
        (Read(11, "r", 0, A, True, "", (("02", "p1"), ("01", "p0"), ("03", "t0")), 12),),
    ),
    "a reader passed a message": (
        Kind.UNSTABLE,
        11,
        (Read(11, "r", 0, A, True, "", (("01", "p0"), ("03", "t0")), 12),),
    ),
    "two readers saw different ids": (
        Kind.UNSTABLE,
        11,
        (Read(11, "r", 0, A, True, "", (("01", "p0"), ("02", "p1"), ("04", "t0")), 12),),
    ),
    "an id was given twice": (
        Kind.REUSED,
        2,
        (Acknowledged(2, A, (("01", "p0"), ("01", "p1")), synced=True),),
    ),
    "a message rests on one that was not the newest": (
        Kind.UPDATE,
        1,
        (Sent(1, A, ("p0",), rests_on=""), Sent(1, A, ("p1",), rests_on="")),
    ),
    "a group went back": (Kind.REGRESSION, 20, (Found(20, "group", A, "", 21),)),
    "a group stands where nobody put it": (Kind.INVENTED, 20, (Found(20, "group", A, "09", 21),)),
    "a message came from nowhere": (
        Kind.INVENTED,
        23,
        (Final(23, B, (("01", "t1"), ("02", "nobody"))),),
    ),
}


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupted_history_is_flagged(what: str) -> None:
    kind, at, instead = CORRUPT[what]
    assert kind in kinds(without(right(), at, *instead))


def test_a_power_loss_excuses_what_was_not_synced() -> None:
    events = without(right(), 2, Acknowledged(2, A, (("01", "p0"), ("02", "p1")), synced=False))
    events = without(events, 11)
    lost = without(events, 22, Final(22, A, (("03", "t0"),)))
    assert kinds([*lost, Crashed(6, power=False)]) == {Kind.LOST}
    assert kinds([*lost, Crashed(6, power=True)]) == set()


def test_a_power_loss_does_not_excuse_what_was_synced() -> None:
    lost = without(right(), 22, Final(22, A, (("03", "t0"),)))
    assert Kind.LOST in kinds([*lost, Crashed(6, power=True)])


def test_a_reader_may_wait_for_another_open_transaction() -> None:
    waiting = Read(13, "late", 0, B, True, "", (), 14, everything=True, held_by="other")
    assert kinds(without(right(), 13, waiting)) == set()
