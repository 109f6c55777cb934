"""The rules of transactions, which are Tephra's; and the replay of the journal."""

from contextlib import suppress
from random import Random
from unittest.mock import MagicMock

import pytest

from tests.clocks import ManualClock
from tests.yardstick import in_yardsticks
from tms.errors import (
    Invalid,
    InvalidTruncateTime,
    Overloaded,
    TMSError,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
    TransactionTimedOut,
)
from tms.model.snapshot import NONE_IN_PROGRESS, Fate, TransactionType
from tms.model.transaction_image import decode_image, encode_image
from tms.transactions import journal
from tms.transactions import state as rules
from tms.transactions.edits import (
    Aborted,
    Began,
    Committed,
    Edit,
    Intended,
    Invalidated,
    Lost,
    Outcome,
    Prepared,
    Reserved,
    Reset,
    SnapshotPart,
    decode_edits,
    encode_edits,
)
from tms.transactions.images import fates_of
from tms.transactions.pruning import checkpoints_of, forget, forget_before
from tms.transactions.state import TransactionState
from tms.transactions.state_snapshot import parts, restore

NOW = 1_700_000_000_000
LONG = TransactionType.LONG


class World:
    """A state with its journal."""

    def __init__(self) -> None:
        self.state = TransactionState()
        self.journal: list[bytes] = []
        self.now = NOW

    def do(self, *edits: Edit | None) -> None:
        for edit in edits:
            if edit is not None:
                self.journal.append(encode_edits([edit]))
                self.state.apply(edit)

    def begin(self, type: TransactionType = TransactionType.SHORT, **more: object) -> int:
        edit = self.state.begin(self.now, type=type, **more)  # type: ignore[arg-type]
        self.do(edit)
        return edit.id

    def commit(self, id: int, *changes: bytes) -> None:
        self.do(self.state.commit(id, changes))

    def again(self) -> TransactionState:
        made = TransactionState()
        for raw in self.journal:
            for edit in decode_edits(raw):
                made.apply(edit)
        return made


@pytest.fixture
def world() -> World:
    return World()


def everything(state: TransactionState) -> dict[str, object]:
    found = dict(vars(state))
    found["open"] = {
        id: (one.began, one.checkpoints, one.changes, one.intended)
        for id, one in state.open.items()
    }
    found.pop("sorted_invalid")
    found["clients"] = state.clients._open
    return found


# Pointers


def test_pointers_are_times_and_grow_also_when_the_clock_goes_back(world: World) -> None:
    first = world.begin()
    assert first == NOW * 1_000_000
    world.now -= 5_000
    assert world.begin() == first + 1
    world.now += 6_000
    assert world.begin() == (NOW + 1_000) * 1_000_000


@pytest.mark.parametrize(
    ("timeout_s", "text"),
    [
        (-5, "timeout must be positive but is -5 seconds"),
        (0, "timeout must be positive but is 0 seconds"),
        (3_601, "at most"),
    ],
)
def test_time_outs_have_bounds(world: World, timeout_s: float, text: str) -> None:
    with pytest.raises(Invalid, match=text) as caught:
        world.begin(timeout_s=timeout_s)
    assert caught.value.details["field"] == "timeout_s"


def test_a_token_of_an_open_transaction_gives_that_one_again(world: World) -> None:
    id = world.begin(token="t")
    assert world.state.begin(NOW, token="t").id == id
    world.commit(id)
    assert world.state.begin(NOW, token="t").id > id


# Snapshots


def test_a_token_is_remembered_as_long_as_its_transaction_is_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 3)
    open = world.begin(token="open")
    for number in range(20):
        world.commit(world.begin(token=f"{number}"))
    assert world.begin(token="open") == open
    assert len(world.state.tokens) == 3
    world.commit(open)
    for number in range(20):
        world.commit(world.begin(token=f"{number}"))
    assert "open" not in world.state.tokens


def test_who_looks_from_outside_is_told_fates_and_no_changes(world: World) -> None:
    """This holds however many keys were changed: readers of the store fetch it again and again."""
    keeps, done, bad = world.begin(), world.begin(), world.begin()
    world.do(world.state.prepare(keeps, [bytes(1_000)]))
    world.commit(done, bytes(2_000))
    world.do(world.state.invalidate(bad))
    world.do(*forget(world.state, [bad]))
    shown = decode_image(encode_image(fates_of(world.state, NOW)))
    assert not shown.committing and not shown.committed
    assert [one.pointer for one in shown.in_progress] == [keeps]
    assert shown.invalid == (bad,)


def test_a_snapshot_names_what_is_in_progress_and_invalid(world: World) -> None:
    one, long, other = world.begin(), world.begin(LONG), world.begin()
    world.do(world.state.checkpoint(one, NOW))
    world.do(world.state.invalidate(other))
    id = world.begin()
    found = world.state.snapshot(id)
    assert found.in_progress == (one, long, world.state.open[one].checkpoints[0])
    assert found.invalid == (other,)
    assert (found.first_short, found.read_pointer) == (one, other)
    world.do(world.state.abort(one))
    world.do(world.state.abort(id))
    world.begin(LONG)
    last = world.begin()
    assert world.state.snapshot(last).first_short == NONE_IN_PROGRESS  # it does not count itself


def test_a_checkpoint_writes_with_a_pointer_of_its_own_and_ends_with_its_transaction(
    world: World,
) -> None:
    id = world.begin()
    world.do(world.state.checkpoint(id, NOW))
    snapshot = world.state.snapshot(id)
    assert snapshot.write_pointer == snapshot.checkpoints[0] > id
    assert snapshot.is_visible(id) and snapshot.is_visible(snapshot.write_pointer)
    assert world.state.fate(snapshot.write_pointer) is Fate.OPEN
    world.commit(id)
    assert world.state.fate(snapshot.write_pointer) is Fate.VISIBLE
    assert world.state.read_pointer == snapshot.write_pointer


def test_what_is_decided_for_one_that_begins_ends_before_the_oldest_in_progress(
    world: World,
) -> None:
    first, other = world.begin(), world.begin()
    world.commit(other)
    last = world.begin()
    assert world.state.read_pointer == other > first
    assert world.state.open[last].began.bound == first - 1
    world.commit(last)
    world.commit(first)
    assert world.state.open[world.begin()].began.bound == last


# Conflicts


def test_of_two_at_a_time_with_the_same_change_the_later_commit_is_refused(world: World) -> None:
    winner, loser, free = world.begin(client="w"), world.begin(), world.begin()
    world.commit(winner, b"k")
    for attempt in (world.state.prepare, world.state.commit):
        with pytest.raises(TransactionConflict) as caught:
            attempt(loser, [b"x", b"k"])
        assert caught.value.details["client"] == "w"
    world.commit(free, b"other")
    assert world.state.outcome(loser) is Outcome.OPEN


def test_one_that_began_after_the_commit_has_no_conflict(world: World) -> None:
    keeps = world.begin()
    world.commit(world.begin(), b"k")
    world.commit(world.begin(), b"k")
    with pytest.raises(TransactionConflict):
        world.state.commit(keeps, [b"k"])


def test_prepared_changes_are_committed_and_gone_after_a_conflict(world: World) -> None:
    one, other = world.begin(), world.begin()
    world.do(world.state.prepare(one, [b"k"]))
    world.do(world.state.prepare(other, [b"k"]))
    world.do(world.state.commit(one))
    with pytest.raises(TransactionConflict):
        world.state.commit(other)
    world.do(Prepared(other, ()))
    assert world.state.commit(other).changes == ()


def test_changes_are_forgotten_when_nobody_can_conflict_with_them(world: World) -> None:
    for _ in range(50):
        world.commit(world.begin(), b"k")
    assert not world.state.winner and not world.state.committed
    keeps = world.begin()
    for number in range(50):
        world.commit(world.begin(), b"%d" % number)
    assert len(world.state.winner) == 50
    world.do(world.state.abort(keeps))
    assert not world.state.winner and not world.state.committed


# Ends


def test_abort_of_a_short_one_leaves_nothing_and_of_a_long_one_an_invalid_one(world: World) -> None:
    short, long = world.begin(), world.begin(LONG)
    world.do(world.state.abort(short))
    world.do(world.state.abort(long))
    assert world.state.invalid == {long}
    assert world.state.outcome(short) is Outcome.ABORTED
    assert world.state.abort(short) is None


def test_abort_takes_a_short_one_off_the_invalid_list(world: World) -> None:
    id = world.begin()
    world.do(world.state.invalidate(id))
    assert world.state.fate(id) is Fate.SKIPPED
    world.do(world.state.abort(id))
    assert not world.state.invalid


def test_what_is_open_for_too_long_becomes_invalid_unless_it_is_being_committed(
    world: World,
) -> None:
    late, busy, longer = world.begin(), world.begin(), world.begin(timeout_s=60)
    world.do(Intended(busy))
    assert world.state.expired(NOW + 30_000, {busy}) is None
    world.do(world.state.expired(NOW + 30_001, {busy}))
    assert set(world.state.open) == {busy, longer}
    with pytest.raises(TransactionTimedOut):
        world.state.find(late)


def test_a_commit_that_was_given_up_halfway_becomes_invalid_at_once(world: World) -> None:
    halfway, other = world.begin(), world.begin()
    world.do(Intended(halfway))
    world.do(world.state.expired(NOW))
    assert set(world.state.open) == {other}
    with pytest.raises(TransactionTimedOut):
        world.state.find(halfway)


def test_an_invalid_one_takes_its_checkpoints_along(world: World) -> None:
    id = world.begin()
    world.do(world.state.checkpoint(id, NOW))
    pointers = set(world.state.open[id].pointers)
    world.do(world.state.invalidate(id))
    assert world.state.invalid == pointers
    assert world.state.invalidate(id) is None


def test_the_invalid_list_is_shortened_only_behind_everything_in_progress(world: World) -> None:
    first = world.begin()
    world.do(world.state.invalidate(first))
    world.now += 10
    open_one = world.begin()
    with pytest.raises(InvalidTruncateTime):
        forget_before(world.state, NOW + 11)
    world.do(*forget_before(world.state, NOW + 10))
    assert not world.state.invalid
    world.do(world.state.invalidate(open_one))
    assert forget(world.state, [first]) == []


@pytest.mark.parametrize("ending", [Aborted, Committed, Invalidated])
def test_late_and_repeated_edits_touch_nothing(world: World, ending: type) -> None:
    id = world.begin()
    world.commit(id, b"k")
    other = world.begin()
    before = everything(world.state)
    edits = {
        Aborted: Aborted(id),
        Committed: Committed(id, id + 1),
        Invalidated: Invalidated((id,)),
    }
    world.state.apply(edits[ending])
    world.state.apply(Began(other, TransactionType.SHORT, 0, 0, None, ""))
    assert everything(world.state) == before


def test_unknown_and_ended_ones_are_told_apart(world: World) -> None:
    with pytest.raises(TransactionNotFound) as unknown:
        world.state.outcome(77)
    assert unknown.value.details["transaction"] == 77
    id = world.begin()
    world.commit(id)
    with pytest.raises(TransactionEnded) as caught:
        world.state.find(id)
    assert caught.value.details["outcome"] == "committed"


# Starting again


def test_what_may_have_been_given_and_forgotten_is_never_visible(world: World) -> None:
    world.do(Reserved((NOW + 10_000) * 1_000_000))
    known = world.begin()
    world.commit(known)
    forgotten = (NOW + 5) * 1_000_000
    for edit in world.state.recovered(NOW + 6):
        world.do(edit)
    world.now = NOW - 60_000  # whatever the clock says
    later = world.begin()
    assert later >= (NOW + 10_000) * 1_000_000
    assert world.state.fate(forgotten) is Fate.SKIPPED
    assert world.state.fate(known) is Fate.VISIBLE


def test_a_start_finishes_nobodys_commit(world: World) -> None:
    halfway, waiting = world.begin(), world.begin()
    world.do(Intended(halfway))
    for edit in world.state.recovered(NOW):
        world.do(edit)
    assert set(world.state.open) == {waiting}
    assert world.state.fate(halfway) is Fate.SKIPPED


def test_even_the_first_pointer_may_be_forgotten(world: World) -> None:
    world.do(Reserved((NOW + 10_000) * 1_000_000))
    for edit in world.state.recovered(NOW + 1):
        world.do(edit)
    world.begin()
    assert world.state.fate(NOW * 1_000_000) is Fate.SKIPPED


@pytest.mark.parametrize("seed", range(40))
def test_the_journal_gives_the_same_state_again(seed: int) -> None:
    """Random decisions, also refused ones; the visible pointers agree with a naive model."""
    random, world = Random(seed), World()
    committed: set[int] = set()
    ids: list[int] = []
    for _ in range(300):
        world.now += random.choice((0, 0, 1, 4_000))
        id = random.choice(ids) if ids else 0
        changes = [b"%d" % random.randrange(6) for _ in range(2)]
        state = world.state
        step = random.randrange(9)
        try:
            if step < 3:
                ids.append(world.begin(random.choice((TransactionType.SHORT, LONG))))
            elif step == 3:
                world.commit(id, *changes)
                committed.add(id)
            elif step == 4:
                world.do(state.prepare(id, changes))
            elif step == 5:
                world.do(state.abort(id))
            elif step == 6:
                world.do(state.checkpoint(id, world.now))
            elif step == 7:
                world.do(state.expired(world.now))
            elif random.random() < 0.2:
                world.do(*state.recovered(world.now))
            elif random.random() < 0.2:
                world.do(*forget(state, ids))
            elif random.random() < 0.1:
                world.do(Reset())
        except TMSError:
            continue
    assert everything(world.again()) == everything(world.state)
    for id in ids:
        fate = world.state.fate(id)
        expected = (
            Fate.OPEN
            if id in world.state.open
            else Fate.VISIBLE
            if id in committed
            else Fate.SKIPPED
        )
        assert fate is expected


# As Tephra has it


def test_before_the_first_transaction_everything_older_is_visible(world: World) -> None:
    id = world.begin()
    assert world.state.read_pointer == id - 1
    assert world.state.open[id].began.bound == id - 1
    world.do(world.state.abort(id))
    world.do(Reset())
    world.begin()
    assert world.state.read_pointer == 0


def test_what_is_forgotten_is_not_listed_and_yet_never_visible(world: World) -> None:
    id = world.begin()
    world.do(world.state.checkpoint(id, NOW))
    pointers = world.state.open[id].pointers
    world.do(world.state.invalidate(id))
    world.do(*forget(world.state, pointers))
    assert world.state.snapshot(world.begin()).invalid == ()
    assert {world.state.fate(pointer) for pointer in pointers} == {Fate.SKIPPED}
    assert world.state.outcome(id) is Outcome.INVALID
    with pytest.raises(TransactionEnded):
        world.state.find(pointers[1])


def test_an_abort_takes_checkpoints_off_the_invalid_list_but_no_other_transactions(
    world: World,
) -> None:
    id, other = world.begin(), world.begin()
    world.do(world.state.checkpoint(id, NOW))
    own = world.state.open[id].checkpoints
    world.do(world.state.invalidate(id), world.state.invalidate(other))
    claimed = checkpoints_of(world.state, id, (*own, other, 77, id))
    assert claimed == own
    world.do(world.state.abort(id, checkpoints=claimed))
    assert world.state.invalid == {other}
    assert [world.state.outcome(pointer) for pointer in (id, *own)] == [Outcome.ABORTED] * 2


def test_a_second_abort_of_a_long_one_leaves_it_invalid(world: World) -> None:
    id = world.begin(LONG)
    world.do(world.state.abort(id))
    assert world.state.abort(id, long=True) is None


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_checkpoint_ends_like_its_transaction(world: World, end: str) -> None:
    id = world.begin()
    world.do(world.state.checkpoint(id, NOW))
    (pointer,) = world.state.open[id].checkpoints
    world.do(getattr(world.state, end)(id))
    assert world.state.outcome(pointer) is world.state.outcome(id)
    assert world.state.read_pointer == pointer
    assert world.state.fate(pointer) is (Fate.VISIBLE if end == "commit" else Fate.SKIPPED)


def test_a_reset_forgets_everything_and_shows_nothing(world: World) -> None:
    done, bad, busy, long = (
        world.begin(),
        world.begin(),
        world.begin(token="t"),
        world.begin(LONG),
    )
    world.commit(done, b"k")
    world.do(world.state.invalidate(bad))
    world.do(world.state.checkpoint(busy, NOW))
    (pointer,) = world.state.open[busy].checkpoints
    world.do(Reset())
    assert (world.state.read_pointer, world.state.invalid, world.state.open) == (0, set(), {})
    unseen = (bad, busy, long, pointer)
    assert {world.state.fate(one) for one in unseen} == {Fate.SKIPPED}
    assert world.state.fate(done) is Fate.VISIBLE
    later = world.begin()
    assert later > pointer
    found = world.state.snapshot(later)
    assert (found.read_pointer, found.in_progress, found.invalid) == (0, (), ())
    world.commit(later, b"k")
    assert everything(world.again()) == everything(world.state)


def test_parts_of_a_state_are_small_though_keys_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.transactions.state_snapshot.PART_BYTES", 1_000)
    world = World()
    world.begin()  # so that the state keeps changes
    keys = [b"%03d" % number * 100 for number in range(9)] + [bytes(5_000)]
    world.commit(world.begin(), *keys)
    found = list(parts(world.state))
    assert max(len(part.changes) for part in found) == 3
    assert {change for part in found for change, _, _ in part.changes} == set(keys)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_of_a_state_is_the_state(seed: int) -> None:
    random, world = Random(seed), World()
    for _ in range(60):
        world.now += random.randrange(3)
        state, open = world.state, list(world.state.open)
        match random.randrange(8):
            case 0 | 1:
                kind = random.choice((TransactionType.SHORT, TransactionType.LONG))
                world.begin(kind, token=str(random.random()), client="c")
            case 2 if open:
                world.do(state.checkpoint(random.choice(open), world.now))
            case 3 if open:
                with suppress(TransactionConflict):
                    world.do(state.prepare(random.choice(open), [b"%d" % random.randrange(5)]))
            case 4 if open:
                with suppress(TransactionConflict):
                    world.do(state.commit(random.choice(open), [b"%d" % random.randrange(5)]))
            case 5 if open:
                world.do(state.abort(random.choice(open)))
            case 6 if open:
                world.do(state.invalidate(random.choice(open)))
            case 7:
                some = random.sample(sorted(state.invalid), len(state.invalid) // 2)
                world.do(*forget(state, some))
                world.do(Lost(state.last_pointer + 5, state.last_pointer + 9))
    made = TransactionState()
    for part in parts(world.state):
        (again,) = decode_edits(encode_edits([part]))
        assert isinstance(again, SnapshotPart)
        restore(made, again)
    for name in ("read_pointer", "last_pointer", "reserved", "in_progress", "invalid", "forgotten"):
        assert getattr(made, name) == getattr(world.state, name)
    for name in ("lost", "ended", "tokens", "winner", "shorts"):
        assert list(getattr(made, name)) == list(getattr(world.state, name)), name
    for id in world.state.open:
        assert made.snapshot(id) == world.state.snapshot(id)
    for pointer in (*made.ended, *made.in_progress, *made.invalid, made.last_pointer + 1):
        assert made.fate(pointer) is world.state.fate(pointer)


def test_no_edits_are_one_entry_of_the_journal_however_small_entries_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "ENTRY_BYTES", 1)
    machine = journal.TransactionsMachine(MagicMock(), ManualClock(), MagicMock())
    assert [len(entries) for entries in machine.encode([])] == [1]


def test_a_client_has_so_many_in_progress_and_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "OPEN_MAX", 3)
    world = World()
    begun = [world.begin(client="ann") for _ in range(3)]
    clients = world.state.clients
    with pytest.raises(Overloaded, match=r"ann has 3 transactions in progress.*tms tx list"):
        clients.require_room("ann", NOW)
    clients.require_room("bob", NOW)
    for end in (Aborted(begun[0]), world.state.commit(begun[1]), Invalidated((begun[2],))):
        world.do(end)
        clients.require_room("ann", NOW)
        world.begin(client="ann")
    with pytest.raises(Overloaded):
        clients.require_room("ann", NOW)
    restored = TransactionState()
    for part in parts(world.state):
        restore(restored, part)
    with pytest.raises(Overloaded):
        restored.clients.require_room("ann", NOW)
    world.do(Reset())
    world.state.clients.require_room("ann", NOW)


def test_a_client_leaves_so_many_invalid_within_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "INVALID_MAX", 2)
    world, times = World(), []
    for _ in range(3):
        world.state.clients.require_room("ann", world.now)
        world.do(Invalidated((world.begin(client="ann"),), timed_out=True))
        times.append(world.now)
        world.now += 1_000
        if len(times) == 2:
            with pytest.raises(Overloaded, match="2 transactions of ann have become invalid"):
                world.state.clients.require_room("ann", world.now)
            world.state.clients.require_room("bob", world.now)
            world.now = times[0] + rules.INVALID_MS + 1
    with pytest.raises(Overloaded):  # the second and the third
        world.state.clients.require_room("ann", times[-1])
    world.state.clients.require_room("ann", world.now)


def test_clients_whose_invalid_transactions_are_counted_are_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "CLIENTS_MAX", 5)
    world = World()
    for number in range(20):
        world.do(Invalidated((world.begin(client=f"c{number}"),)))
    assert [*world.state.clients._invalid] == [f"c{number}" for number in range(15, 20)]
    assert not world.state.clients._open


def test_a_begin_costs_the_same_after_many_have_ended() -> None:
    """The oldest in progress is found without a look at ended ones."""

    def cost(ended: int) -> float:
        world = World()
        ids = [world.begin() for _ in range(ended + 1)]
        world.do(*map(Aborted, ids[:ended]))
        return in_yardsticks(lambda number: world.state.begin(NOW + number))

    assert cost(20_000) < 3 * cost(10)
