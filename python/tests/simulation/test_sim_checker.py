"""The checker of histories: silent about a right one, and never about a wrong one."""

import pytest

from sim.history import (
    Acknowledged,
    Asked,
    Cancelled,
    Clock,
    Compacted,
    Compacting,
    Crashed,
    Deferred,
    Done,
    Drained,
    Ended,
    Erased,
    Event,
    Final,
    Found,
    Handled,
    History,
    Job,
    Listed,
    Place,
    Read,
    Sent,
    Stored,
    Taken,
    Truncated,
    metadata_of,
)
from sim.rules.checker import check
from sim.rules.findings import Kind

A, B, OUT = ("a", 0), ("b", 0), ("out", 0)


def right() -> list[Event]:
    """A correct run: plain messages, a transaction over two partitions, an aborted one, and a group
    that makes a message of each message."""
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
        Found(20, "group", A, "03", 21, metadata_of("03")),
        Final(22, A, (("01", "p0"), ("02", "p1"), ("03", "t0"))),
        Final(23, B, (("01", "t1"),)),
        Final(24, OUT, (("01", "o0"), ("02", "o1"), ("03", "o2"))),
        Done(25, "group", A, "03", "out", metadata_of("03")),
    ]


def without(events: list[Event], at: int, *instead: Event) -> list[Event]:
    """The events, with others in place of those at this moment."""
    place = next(number for number, event in enumerate(events) if event.at == at)
    after = [event for event in events[place:] if event.at != at]
    return [*events[:place], *instead, *after]


def kinds(events: list[Event]) -> set[Kind]:
    """The findings of the checker."""
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
    "metadata are lost": (Kind.INVENTED, 20, (Found(20, "group", A, "03", 21),)),
    "metadata are those of an earlier position": (
        Kind.INVENTED,
        25,
        (Done(25, "group", A, "03", "out", "behind 02"),),
    ),
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


def test_a_message_may_have_the_id_of_one_that_a_power_loss_took_from_a_reader() -> None:
    def history(*crashed: Event) -> History:
        return History(
            [
                Sent(1, A, ("lost",)),
                Read(2, "r", 0, A, False, "", (("01", "lost"),), 3),
                *crashed,
                Sent(5, A, ("same", "next")),
                Acknowledged(6, A, (("01", "same"), ("02", "next")), synced=True),
                Read(7, "r", 0, A, False, "01", (("02", "next"),), 8),
                Final(9, A, (("01", "same"), ("02", "next"))),
            ]
        )

    assert not check(history(Crashed(4, power=True)))
    found = [one.kind for one in check(history(Crashed(4, power=False)))]
    assert Kind.UNSTABLE in found and Kind.REUSED in found


def test_a_power_loss_does_not_excuse_what_was_synced() -> None:
    lost = without(right(), 22, Final(22, A, (("03", "t0"),)))
    assert Kind.LOST in kinds([*lost, Crashed(6, power=True)])


def test_a_reader_may_wait_for_another_open_transaction() -> None:
    waiting = Read(13, "late", 0, B, True, "", (), 14, everything=True, held_by="other")
    assert kinds(without(right(), 13, waiting)) == set()


JOBS, DEAD = ("jobs", 0), ("dead", 0)


def handled(at: int, how: str, job: Job, done: bool = True) -> Handled:
    told = (job.value,)
    return Handled(at, "w", "q", how, (job,), told if done else (), () if done else told, at)


def taken(at: int, clock_ms: int, *jobs: Job, worker: str = "w", era: int = 0) -> Taken:
    return Taken(at, worker, "q", jobs, at, clock_ms, 1_000, era)


def worked() -> list[Event]:
    """A run of a queue: one message acknowledged, one released and then settled by a commit, one
    rejected, one that died of its deliveries."""
    return [
        Sent(1, JOBS, ("a", "b", "c", "d")),
        taken(2, 0, Job("a", 1), Job("b", 1), Job("c", 1), Job("d", 1)),
        handled(3, "ack", Job("a", 1)),
        handled(4, "nack", Job("b", 1)),
        handled(5, "reject", Job("c", 1)),
        taken(6, 100, Job("b", 2), worker="v"),
        handled(7, "made", Job("b", 2)),
        taken(8, 1_000, Job("d", 2)),
        Final(10, JOBS, (("01", "a"), ("02", "b"), ("03", "c"), ("04", "d"))),
        Final(11, DEAD, (("01", "c"), ("02", "d"))),
        Drained(12, "q", JOBS, (DEAD,)),
    ]


def test_a_right_history_of_a_queue_has_no_findings() -> None:
    assert check(History(worked())) == []


def kept(*messages: tuple[str, str]) -> list[Event]:
    """A run of a compacted topic, with its remaining messages."""
    place = ("kept", 0)
    values = (("01", "a=1"), ("02", "b=1"), ("03", "a=2"), ("04", "plain"))
    return [
        Sent(1, place, tuple(value for _, value in values)),
        Acknowledged(2, place, values, synced=True),
        Read(3, "r", 0, place, True, "", values, 4),
        Final(5, place, messages),
        Compacted(6, place),
    ]


def test_of_a_compacted_topic_only_the_newest_of_each_key_must_be_left() -> None:
    assert check(History(kept(("02", "b=1"), ("03", "a=2"), ("04", "plain")))) == []
    assert kinds(kept(("01", "a=1"), ("02", "b=1"), ("04", "plain"))) == {Kind.LOST}
    assert kinds(kept(("02", "b=1"), ("03", "a=2"))) == {Kind.LOST}


KEPT = ("kept", 0)


def lived() -> list[Event]:
    """A run of a compacted topic: a tombstone that goes in time, a key that is erased and then used
    again, an id that is erased, a transaction that no erasing covers."""
    left = (("05", "d=1"), ("06", "x=1"), ("07", "b=2"))
    return [
        Clock(0, 0),
        Sent(1, KEPT, ("a=1", "b=1")),
        Sent(2, KEPT, ("a=-2",)),
        Acknowledged(3, KEPT, (("01", "a=1"), ("02", "b=1"), ("03", "a=-2")), synced=True),
        Read(4, "r", 0, KEPT, True, "", (("01", "a=1"), ("02", "b=1"), ("03", "a=-2")), 5),
        Compacting(6, KEPT),
        Clock(7, 1_000),
        Read(8, "r", 1, KEPT, True, "", (("02", "b=1"), ("03", "a=-2")), 9, everything=True),
        Compacting(10, KEPT),
        Sent(11, KEPT, ("c=1",)),
        Acknowledged(12, KEPT, (("04", "c=1"),), synced=True),
        Sent(13, KEPT, ("d=1", "x=1"), "t"),
        Asked(14, "t"),
        Ended(15, "t", committed=True),
        Erased(16, (KEPT,), "b", "", 17, done=True),
        Sent(18, KEPT, ("b=2",)),
        Acknowledged(19, KEPT, (("07", "b=2"),), synced=True),
        Erased(20, (KEPT,), "", "04", 21, done=True),
        Read(22, "r", 2, KEPT, True, "", left, 23, everything=True),
        Final(24, KEPT, left),
        Compacted(25, KEPT, 1_000),
        Stored(26, ("a=1", "a=-2")),
    ]


def test_a_right_history_of_what_goes_has_no_findings() -> None:
    assert check(History(lived())) == []


def left_at_the_end(*messages: tuple[str, str]) -> tuple[Event, ...]:
    return (Final(24, KEPT, messages),)


D1, X1, B2 = ("05", "d=1"), ("06", "x=1"), ("07", "b=2")
GONE: dict[str, tuple[Kind, int, tuple[Event, ...]]] = {
    "a tombstone went before its time": (Kind.LOST, 7, (Clock(7, 999),)),
    "a tombstone went with the first pass that came over it": (Kind.LOST, 6, ()),
    "what was deleted is there again": (Kind.RISEN, 24, left_at_the_end(("01", "a=1"), D1, X1, B2)),
    "a reader keeps what was deleted": (
        Kind.RISEN,
        8,
        (Read(8, "r", 1, KEPT, True, "", (("01", "a=1"), ("02", "b=1")), 9, everything=True),),
    ),
    "a message of an erased key is there": (
        Kind.UNERASED,
        24,
        left_at_the_end(("02", "b=1"), D1, X1, B2),
    ),
    "a message of an erased key was published again": (
        Kind.UNERASED,
        24,
        left_at_the_end(D1, X1, B2, ("08", "b=1")),
    ),
    "a message with an erased id is there": (
        Kind.UNERASED,
        24,
        left_at_the_end(("04", "c=1"), D1, X1, B2),
    ),
    "an erased message was read": (
        Kind.UNERASED,
        22,
        (Read(22, "s", 0, KEPT, True, "", (("02", "b=1"),), 23),),
    ),
    "the bytes of an erased message are stored": (Kind.UNERASED, 26, (Stored(26, ("b=1",)),)),
    "the bytes of a message with an erased id are stored": (
        Kind.UNERASED,
        26,
        (Stored(26, ("c=1",)),),
    ),
    "the bytes of a committed message that nobody read are stored": (
        Kind.UNERASED,
        22,
        (Erased(22, (KEPT,), "d", "", 23, done=True), Stored(23, ("d=1",))),
    ),
    "erasing took what has another key": (Kind.LOST, 24, left_at_the_end(D1, B2)),
    "erasing took a part of a transaction that has another key": (
        Kind.TORN,
        24,
        left_at_the_end(D1, B2),
    ),
    "erasing took what came after its answer": (Kind.LOST, 24, left_at_the_end(D1, X1)),
}


@pytest.mark.parametrize("what", GONE)
def test_a_corrupted_history_of_what_goes_is_flagged(what: str) -> None:
    kind, at, instead = GONE[what]
    assert kind in kinds(without(lived(), at, *instead))


def test_an_erasing_without_an_answer_excuses_and_promises_nothing() -> None:
    events = without(lived(), 16, Erased(16, (KEPT,), "b", "", 17, done=False))
    assert kinds(events) == set()
    events = without(events, 22)
    assert kinds(without(events, 24, *left_at_the_end(("02", "b=1"), D1, X1, B2))) == set()
    assert kinds([*events, Stored(27, ("b=1",))]) == set()


def test_an_erasing_of_an_id_leaves_what_a_failed_attempt_of_its_commit_took_back() -> None:
    erased = Erased(22, (KEPT,), "", "05", 23, done=True)
    events = without(without(lived(), 22, erased), 24, *left_at_the_end(X1, B2))
    known = Read(15, "s", 0, KEPT, True, "04", (D1,), 15)
    assert kinds([*events, known, Stored(27, ("d=1",))]) == set()
    by_key = Erased(22, (KEPT,), "d", "", 23, done=True)
    assert kinds([*events, known, by_key, Stored(27, ("d=1",))]) == {Kind.UNERASED}


def test_an_erasing_in_another_place_excuses_nothing() -> None:
    other = Erased(27, (("kept", 1),), "x", "", 28, done=True)
    lost = without(without(lived(), 22), 24, *left_at_the_end(D1, B2))
    assert kinds([*lost, other]) == {Kind.LOST, Kind.TORN}
    assert kinds([*lost, Erased(27, (KEPT,), "x", "", 28, done=True)]) == set()


def test_a_reader_who_takes_longer_than_tombstones_stay_may_keep_what_was_deleted() -> None:
    slow = [
        Read(5, "slow", 0, KEPT, True, "", (("01", "a=1"),), 5),
        Read(8, "slow", 0, KEPT, True, "01", (("02", "b=1"),), 9, everything=True),
    ]
    events = without(lived(), 8, *slow)
    assert kinds(events) == set()
    assert kinds(without(events, 7, Clock(7, 999))) == {Kind.RISEN, Kind.LOST}


QUEUES: dict[str, tuple[Kind, int, tuple[Event, ...]]] = {
    "a message is settled twice": (Kind.AGAIN, 8, (handled(8, "ack", Job("b", 1)),)),
    "a message comes again after it was settled": (Kind.AGAIN, 8, (taken(8, 2_000, Job("a", 2)),)),
    "a message is with two workers": (Kind.SHARED, 8, (taken(8, 999, Job("d", 2)),)),
    "a delivery has the number of another one": (
        Kind.REGRESSION,
        8,
        (taken(8, 2_000, Job("d", 1)),),
    ),
    "a message was never delivered": (
        Kind.LOST,
        10,
        (
            Sent(0, JOBS, ("e",)),
            Final(10, JOBS, (("01", "a"), ("02", "b"), ("03", "c"), ("04", "d"), ("05", "e"))),
        ),
    ),
    "a message is dead twice": (
        Kind.DUPLICATE,
        11,
        (Final(11, DEAD, (("01", "c"), ("02", "d"), ("03", "d"))),),
    ),
    "a settled message is dead": (
        Kind.AGAIN,
        11,
        (Final(11, DEAD, (("01", "c"), ("02", "d"), ("03", "a"))),),
    ),
    "a rejected message is nowhere": (Kind.LOST, 11, (Final(11, DEAD, (("01", "d"),)),)),
    "a message is gone": (Kind.LOST, 3, ()),
}


@pytest.mark.parametrize("what", QUEUES)
def test_a_corrupted_history_of_a_queue_is_flagged(what: str) -> None:
    kind, at, instead = QUEUES[what]
    assert kind in kinds(without(worked(), at, *instead))


LATER = ("later", 0)


def cancelled(at: int, value: str, done: bool | None = True, synced: bool = True) -> Cancelled:
    return Cancelled(at, LATER, value, done, at, synced)


def waited() -> list[Event]:
    """A run of delayed messages: two that are due at 100 and at 200, a cancelled one, one whose
    publish got no answer and that came nevertheless."""
    return [
        Clock(1, 50),
        Sent(2, LATER, ("a", "b"), due_ms=100),
        Deferred(3, LATER, ((100, 1, "a"), (100, 2, "b")), synced=True),
        Sent(4, LATER, ("c",), delay_ms=150),
        Deferred(5, LATER, ((200, 3, "c"),), synced=True),
        Sent(6, LATER, ("d",), delay_ms=100),
        Listed(7, "later", ("a", "b", "d", "c"), 4, 8),
        cancelled(9, "b"),
        Listed(10, "later", ("a", "d", "c"), 3, 11),
        Clock(12, 100),
        Read(13, "r", 0, LATER, True, "", (("01", "a"),), 14),
        cancelled(15, "a", done=False),
        Clock(16, 250),
        Read(17, "r", 0, LATER, True, "01", (("02", "d"), ("03", "c")), 18),
        Clock(19, 90),
        Final(20, LATER, (("01", "a"), ("02", "d"), ("03", "c"))),
    ]


def test_a_right_history_of_delayed_messages_has_no_findings() -> None:
    assert check(History(waited())) == []


def test_a_history_of_delayed_messages_survives_being_written_and_read() -> None:
    history = History(waited())
    assert History.decode(history.encode()).events == history.events


def with_b(events: list[Event]) -> list[Event]:
    """The events, with the cancelled message among the delivered ones."""
    read = Read(17, "r", 0, LATER, True, "01", (("02", "b"), ("03", "d"), ("04", "c")), 18)
    final = Final(20, LATER, (("01", "a"), ("02", "b"), ("03", "d"), ("04", "c")))
    return without(without(events, 17, read), 20, final)


LOST_ONE = Final(20, LATER, (("01", "a"), ("02", "d")))
WRONG_LATER: dict[str, tuple[Kind, int, tuple[Event, ...]]] = {
    "an acknowledged message never comes": (Kind.LOST, 20, (LOST_ONE,)),
    "a message comes twice": (
        Kind.DUPLICATE,
        20,
        (Final(20, LATER, (("01", "a"), ("02", "d"), ("03", "c"), ("04", "a"))),),
    ),
    "a repetition is stored once more": (
        Kind.DUPLICATE,
        7,
        (Deferred(7, LATER, ((200, 4, "c"),), synced=True),),
    ),
    "a sequence is given twice": (
        Kind.REUSED,
        7,
        (Deferred(7, LATER, ((150, 3, "d"),), synced=True),),
    ),
    "of what was published together a part comes": (Kind.TORN, 9, ()),
    "a message is seen before it is due": (Kind.EARLY, 12, (Clock(12, 99),)),
    "a message whose publish was not answered is seen before it can be due": (
        Kind.EARLY,
        16,
        (Clock(16, 149),),
    ),
    "a message is to be due before it was asked for": (
        Kind.EARLY,
        5,
        (Deferred(5, LATER, ((199, 3, "c"),), synced=True),),
    ),
    "a message comes before one that is due before it": (
        Kind.UNSTABLE,
        20,
        (Final(20, LATER, (("01", "c"), ("02", "a"), ("03", "d"))),),
    ),
    "a cancelled message comes": (Kind.CANCELLED, 15, (cancelled(15, "a"),)),
    "a cancelled message was seen": (
        Kind.CANCELLED,
        13,
        (Read(13, "r", 0, LATER, True, "", (("01", "a"), ("00", "b")), 14),),
    ),
    "a message that could not be cancelled never comes": (
        Kind.CANCELLED,
        9,
        (cancelled(9, "b", done=False),),
    ),
    "a repeated cancel has another answer": (
        Kind.CANCELLED,
        19,
        (cancelled(19, "b", done=False),),
    ),
    "a cancel is too late before the message is due": (
        Kind.CANCELLED,
        9,
        (cancelled(9, "b"), cancelled(9, "c", done=False)),
    ),
    "a message that waits is missing": (Kind.LISTED, 7, (Listed(7, "later", ("b", "c"), 2, 8),)),
    "a message that was cancelled waits": (
        Kind.LISTED,
        10,
        (Listed(10, "later", ("a", "b", "d", "c"), 4, 11),),
    ),
    "a message that was delivered waits": (
        Kind.LISTED,
        19,
        (Listed(19, "later", ("a",), 1, 19),),
    ),
    "what waits is counted wrongly": (
        Kind.LISTED,
        10,
        (Listed(10, "later", ("a", "d", "c"), 4, 11),),
    ),
    "a message waits that nobody published": (
        Kind.INVENTED,
        10,
        (Listed(10, "later", ("a", "d", "c", "nobody"), 4, 11),),
    ),
    "a message comes that nobody published": (
        Kind.INVENTED,
        20,
        (Final(20, LATER, (("01", "a"), ("02", "d"), ("03", "c"), ("04", "nobody"))),),
    ),
}


@pytest.mark.parametrize("what", WRONG_LATER)
def test_a_corrupted_history_of_delayed_messages_is_flagged(what: str) -> None:
    kind, at, instead = WRONG_LATER[what]
    assert kind in kinds(without(waited(), at, *instead))


@pytest.mark.parametrize("synced", [False, True])
def test_a_power_loss_excuses_a_delayed_message_and_a_cancel_that_were_not_synced(
    synced: bool,
) -> None:
    lost = without(waited(), 5, Deferred(5, LATER, ((200, 3, "c"),), synced))
    lost = [*without(without(lost, 17), 20, LOST_ONE), Crashed(12, power=True)]
    assert kinds(lost) == ({Kind.LOST} if synced else set())

    forgotten = with_b(without(waited(), 9, cancelled(9, "b", synced=synced)))
    forgotten.append(Crashed(12, power=True))
    assert kinds(forgotten) == ({Kind.CANCELLED} if synced else set())


def test_a_cancel_without_an_answer_excuses_both() -> None:
    unanswered = without(waited(), 9, cancelled(9, "b", done=None))
    assert kinds(unanswered) == set()
    assert kinds(with_b(unanswered)) == set()


def test_after_a_clock_went_back_what_is_due_before_may_come_behind() -> None:
    def run(wall_ms: int) -> list[Event]:
        return [
            Clock(1, 50),
            Sent(2, LATER, ("late",), due_ms=200),
            Deferred(3, LATER, ((200, 1, "late"),), synced=True),
            Clock(4, wall_ms),
            Clock(5, 60),
            Sent(6, LATER, ("early",), due_ms=100),
            Deferred(7, LATER, ((100, 2, "early"),), synced=True),
            Clock(8, 200),
            Final(9, LATER, (("01", "late"), ("02", "early"))),
        ]

    assert kinds(run(200)) == set()
    assert kinds(run(199)) == {Kind.UNSTABLE}


def test_a_reader_that_is_told_to_have_all_has_what_was_there_before_it_asked() -> None:
    events = without(right(), 11, Read(11, "r", 0, A, True, "", (("01", "p0"),), 12, True))
    assert kinds(events) == {Kind.STOPPED}
    assert kinds([*events, Crashed(3, power=True)]) == {Kind.STOPPED}
    held = Read(11, "r", 0, A, True, "", (("01", "p0"),), 12, True, held_by="t")
    assert kinds(without(events, 11, held)) == set()


def test_a_reader_of_one_key_misses_none_of_it() -> None:
    place = ("kept", 0)
    values = (("01", "a=1"), ("02", "b=1"), ("03", "a=2"), ("04", "b=2"))

    def run(*shown: tuple[str, str]) -> list[Event]:
        return [
            Sent(1, place, tuple(value for _, value in values)),
            Acknowledged(2, place, values, synced=True),
            Read(3, "r", 0, place, True, "", shown, 4, everything=True, key="a"),
            Final(5, place, values),
        ]

    assert kinds(run(("01", "a=1"), ("03", "a=2"))) == set()
    assert kinds(run(("01", "a=1"))) == {Kind.STOPPED}
    assert kinds(run(("03", "a=2"))) == {Kind.UNSTABLE}


def test_what_was_truncated_may_be_gone_and_is_not_handed_out() -> None:
    values = (("01", "a"), ("02", "b"), ("03", "c"))
    run: list[Event] = [
        Sent(1, JOBS, ("a", "b", "c")),
        Acknowledged(2, JOBS, values, synced=True),
        Read(3, "r", 0, JOBS, True, "", values, 4),
        Truncated(5, JOBS, "02", 6, done=True),
        Final(9, JOBS, (("03", "c"),)),
    ]
    assert kinds(run) == set()
    assert kinds(without(run, 9, Final(9, JOBS, ()))) == {Kind.LOST}
    assert kinds([*run, taken(7, 0, Job("a", 1))]) == {Kind.UNERASED}
    assert kinds([*run, taken(7, 0, Job("c", 1))]) == set()
    late = Read(7, "s", 0, JOBS, True, "", (("02", "b"), ("03", "c")), 8)
    assert kinds([*run, late]) == {Kind.UNERASED}
    unsure = without(run, 5, Truncated(5, JOBS, "02", 6, done=False))
    assert kinds([*unsure, late]) == set()


def test_the_dead_letters_of_a_key_are_in_its_partition() -> None:
    other = DEAD[0], DEAD[1] + 1

    def run(place: Place) -> list[Event]:
        return [
            Sent(1, JOBS, ("k=1", "l=1")),
            taken(2, 0, Job("k=1", 1), Job("l=1", 1)),
            handled(3, "reject", Job("k=1", 1)),
            handled(4, "ack", Job("l=1", 1)),
            Final(10, JOBS, (("01", "k=1"), ("02", "l=1"))),
            Final(11, place, (("01", "k=1"),)),
            Drained(12, "q", JOBS, (DEAD, other), homes=(("k", other), ("l", DEAD))),
        ]

    assert kinds(run(other)) == set()
    assert kinds(run(DEAD)) == {Kind.STRAYED}


def test_an_erased_message_is_not_handed_out() -> None:
    erased = Erased(3, (JOBS,), "k", "", 4, done=True)
    run: list[Event] = [
        Sent(1, JOBS, ("k=1", "l=1")),
        Acknowledged(2, JOBS, (("01", "k=1"), ("02", "l=1")), synced=True),
        erased,
        Final(9, JOBS, (("02", "l=1"),)),
    ]
    assert kinds([*run, taken(5, 0, Job("l=1", 1))]) == set()
    assert kinds([*run, taken(5, 0, Job("k=1", 1))]) == {Kind.UNERASED}


def test_a_queue_ordered_by_key_hands_out_one_message_of_a_key_after_another() -> None:
    run: list[Event] = [
        Sent(1, JOBS, ("k=1", "l=1", "k=2")),
        taken(2, 0, Job("k=1", 1), Job("l=1", 1)),
        handled(3, "ack", Job("k=1", 1)),
        taken(4, 10, Job("k=2", 1)),
        handled(5, "ack", Job("k=2", 1)),
        handled(6, "ack", Job("l=1", 1)),
        Final(10, JOBS, (("01", "k=1"), ("02", "l=1"), ("03", "k=2"))),
        Final(11, DEAD, ()),
        Drained(12, "q", JOBS, (DEAD,), by_key=True),
    ]
    assert kinds(run) == set()
    assert kinds(without(run, 3, handled(7, "ack", Job("k=1", 1)))) == {Kind.OVERTAKEN}
