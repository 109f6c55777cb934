"""One process owns a shared store: a second one is refused or takes it over, and the first one
learns of it."""

import os
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import SYNCED, KeptStore
from tms.cluster.ownership import (
    OwnerLimits,
    OwnerRecord,
    Ownership,
    SharedBy,
    machine,
    own,
    process,
)
from tms.errors import AlreadyRunning, DataCorrupt, NotOwner, StorageUnavailable, TMSError
from tms.model.keys import OWNER
from tms.store.base import Map

SILENT_S = 10.0


class Place:
    """A shared store, and the processes that want it. Waiting lets time pass, and others act."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(KeptStore(shared=True))
        self.metadata: Map = self.store.open("metadata", create=True)
        self.meanwhile: Callable[[], None] = lambda: None
        self.waits = 0

    def owner(self, name: str, shared_by: SharedBy | None = None) -> Ownership:
        limits = OwnerLimits(1.0, SILENT_S)
        return Ownership(self.metadata, self.clock, name, limits, self._wait, shared_by)

    def taken(self, name: str, take_over: bool = False) -> Ownership:
        owner = self.owner(name)
        owner.take(take_over)
        return owner

    def record(self) -> OwnerRecord:
        raw = self.metadata.get(OWNER)
        assert raw is not None
        return msgspec.json.decode(raw, type=OwnerRecord)

    def change(self, **fields: object) -> None:
        record = msgspec.structs.replace(self.record(), **fields)
        self.metadata.write([(OWNER, msgspec.json.encode(record))], SYNCED)

    def lose_an_answer(self) -> None:
        """Write the next record without an answer."""
        before = self.metadata.compare_and_set

        def unanswered(key: bytes, expected: bytes | None, value: bytes | None) -> bool:
            self.metadata.compare_and_set = before  # type: ignore[method-assign]
            before(key, expected, value)
            raise StorageUnavailable("No answer came.")

        self.metadata.compare_and_set = unanswered  # type: ignore[method-assign]

    def _wait(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 1_000, "it waits for ever"
        self.clock.pass_ms(int(seconds * 1000))
        self.meanwhile()


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_store_that_nobody_owns_is_owned_at_once(place: Place) -> None:
    owner = place.taken("first")
    owner.confirm()
    assert (place.record().name, place.record().epoch, place.waits) == ("first", 1, 0)


def test_a_second_process_is_refused_by_name_once_the_owner_shows_life(
    place: Place,
) -> None:
    first = place.taken("the service http://127.0.0.1:7070")
    place.meanwhile = first.beat
    with pytest.raises(AlreadyRunning, match=r"http://127\.0\.0\.1:7070.*--take-over") as refused:
        place.taken("second")
    assert refused.value.details == {"owner": "the service http://127.0.0.1:7070"}
    assert place.waits == 1
    first.confirm()


def test_a_second_process_may_take_over_and_the_first_one_is_told(place: Place) -> None:
    first = place.taken("first")
    told: list[TMSError] = []
    first.watch(told.append)
    second = place.taken("second", take_over=True)
    second.confirm()
    assert place.record().epoch == 2
    for _ in range(2):
        with pytest.raises(NotOwner, match="second has taken it over") as refused:
            first.confirm()
        assert refused.value.details == {"owner": "second"}
    with pytest.raises(NotOwner):
        first.beat()
    assert first.lost is not None
    first._run()  # the thread, which notices at its next beat
    assert [one.code for one in told] == ["not-owner"]


def test_who_asks_late_whether_the_store_was_lost_is_told_too(place: Place) -> None:
    first = place.taken("first")
    place.taken("second", take_over=True)
    with pytest.raises(NotOwner):
        first.confirm()
    told: list[TMSError] = []
    first.watch(told.append)
    assert len(told) == 1


def test_an_owner_that_released_the_store_is_not_waited_for(place: Place) -> None:
    first = place.taken("first")
    first.release()
    first.release()
    place.taken("second").confirm()
    assert place.waits == 0


def test_an_owner_elsewhere_that_is_silent_is_dead_after_a_while(place: Place) -> None:
    place.taken("first")
    place.change(machine="another one")
    began_s = place.clock.monotonic_s()
    place.taken("second").confirm()
    assert SILENT_S <= place.clock.monotonic_s() - began_s <= SILENT_S + 1


def test_how_late_the_wall_clock_is_does_not_count(place: Place) -> None:
    first = place.taken("first")
    place.meanwhile = lambda: (place.clock.jump_ms(3_600_000), first.beat())[1]
    with pytest.raises(AlreadyRunning):
        place.taken("second")


def test_an_owner_that_beats_at_the_last_moment_is_alive(place: Place) -> None:
    first = place.taken("first")
    before = place.metadata.compare_and_set

    def beaten(key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        place.metadata.compare_and_set = before  # type: ignore[method-assign]
        first.beat()
        return before(key, expected, value)

    def nearly_dead() -> None:
        if place.waits == 40:
            place.metadata.compare_and_set = beaten  # type: ignore[method-assign]

    place.meanwhile = nearly_dead
    with pytest.raises(AlreadyRunning):
        place.taken("second")
    first.confirm()


def test_an_owner_whose_process_is_gone_from_this_machine_is_not_waited_for(place: Place) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    place.taken("first")
    place.change(process=f"{int(ended.stdout)} 1")
    place.taken("second").confirm()
    place.change(process=f"{os.getpid()} 1")  # another process has its id by now
    place.taken("third").confirm()
    assert place.waits == 0


def test_a_process_of_another_machine_is_not_looked_for_here(place: Place) -> None:
    first = place.taken("first")
    place.change(process="1 1", machine="another one")
    first._raw, first._record = first._read_again()
    place.meanwhile = first.beat
    with pytest.raises(AlreadyRunning):
        place.taken("second")


def test_a_living_process_has_a_name_and_a_dead_one_has_none() -> None:
    assert machine() == machine() != ""
    mine = process(os.getpid())
    assert mine is not None and mine.startswith(f"{os.getpid()} ")
    assert process(2**22 + 1) is None


def test_an_owner_whose_beat_got_no_answer_goes_on(place: Place) -> None:
    first = place.taken("first")
    place.lose_an_answer()
    with pytest.raises(StorageUnavailable):
        first.beat()
    first.beat()
    beaten = place.record().beat
    first.beat()
    assert place.record().beat == beaten + 1
    first.release()
    assert place.record().released


def test_a_newcomer_whose_claim_got_no_answer_owns_the_store_once(place: Place) -> None:
    second = place.owner("second")
    place.lose_an_answer()
    second.take()
    second.confirm()
    assert place.record().epoch == 1


def test_of_two_that_take_over_at_once_one_owns_the_store(place: Place) -> None:
    place.taken("first")
    second, third = place.owner("second"), place.owner("third")
    second.take(take_over=True)
    third.take(take_over=True)
    third.confirm()
    with pytest.raises(NotOwner):
        second.confirm()


def test_an_owner_whose_record_was_removed_owns_nothing(place: Place) -> None:
    first = place.taken("first")
    place.metadata.delete([OWNER])
    with pytest.raises(NotOwner, match="removed the owner's record"):
        first.confirm()


def test_a_store_that_does_not_answer_does_not_make_an_owner_a_stranger(place: Place) -> None:
    first = place.taken("first")
    place.store.crashed = True
    with pytest.raises(StorageUnavailable):
        first.confirm()
    assert first.lost is None
    first.release()  # writes nothing: the next process waits
    place.store.crashed = False
    assert not place.record().released


def test_a_damaged_record_is_named(place: Place) -> None:
    place.metadata.write([(OWNER, b"{")], SYNCED)
    with pytest.raises(DataCorrupt, match="record `owner`"):
        place.taken("first")


def test_a_store_of_one_process_has_no_owner() -> None:
    assert own(KeptStore(), ManualClock(), "me", OwnerLimits()) is None


def test_a_cluster_of_another_id_is_refused_while_the_first_one_lives(place: Place) -> None:
    first, second = (place.owner(id, SharedBy("/tms", id)) for id in ("1f", "2e"))
    first.take()
    place.owner("a", SharedBy("/tms", "1f")).take()
    place.meanwhile = first.beat
    with pytest.raises(AlreadyRunning, match=r"the cluster at /tms \(cluster id 1f\)"):
        second.take()
    first.confirm()
    second.take(take_over=True)
    with pytest.raises(NotOwner, match=r"cluster id 2e"):
        first.beat()


def test_instances_with_and_without_an_id_share_a_store_during_an_upgrade(place: Place) -> None:
    old, new = place.owner("a", SharedBy("/tms")), place.owner("b", SharedBy("/tms", "1f"))
    old.take()
    place.meanwhile = old.beat
    epoch = place.record().epoch
    new.take()
    for owner in (new, old, new):
        owner.beat()
        new.confirm()
    assert (place.record().epoch, place.record().cluster) == (epoch, "1f")
    with pytest.raises(AlreadyRunning):
        place.meanwhile = new.beat
        place.owner("c", SharedBy("/tms", "2e")).take()


def test_an_owner_says_that_the_store_does_not_answer_after_three_beats(place: Place) -> None:
    owner = place.taken("first")
    assert owner.reasons() == []
    owner.beat()
    place.clock.pass_ms(3_000)
    assert owner.reasons() == []
    place.clock.pass_ms(1_000)
    assert "has not answered first for 4 s" in owner.reasons()[0]
    owner.beat()
    assert owner.reasons() == []
