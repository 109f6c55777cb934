"""Tephra's operations on an engine: they agree with the messages, whatever happens in between."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from tests.gate_kit import in_thread
from tests.transactions.test_transactions import A, B, World, commit
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.errors import (
    Conflict,
    DataCorrupt,
    Invalid,
    InvalidTruncateTime,
    StorageUnavailable,
    TMSError,
    TooLarge,
    TopicNotFound,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
)
from tms.log.journaled import Cells
from tms.log.pending import PendingAppend
from tms.model.message import Appended, NewBlock
from tms.model.snapshot import Snapshot, TransactionType, VisibilityLevel
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import TopicBlock
from tms.model.transaction_image import (
    InProgress,
    TransactionImage,
    decode_image,
    encode_image,
)
from tms.transactions import writes as published
from tms.transactions.edits import Committed, decode_edits
from tms.transactions.tephra import CHANGES_BYTES_MAX

SHORT, LONG = TransactionType.SHORT, TransactionType.LONG


class TephraWorld(World):
    """The engine, called as Tephra's clients call it."""

    def start(self, type: TransactionType = SHORT, client: str | None = "me") -> Snapshot:
        self.clock.pass_ms(1)
        return self.tx.tephra.start(type, client)

    def commit(self, snapshot: Snapshot, *changes: bytes) -> None:
        if changes:
            self.tx.tephra.can_commit(snapshot.transaction_id, changes)
        self.tx.tephra.commit(snapshot.transaction_id, snapshot.write_pointer)

    def abort(self, snapshot: Snapshot) -> None:
        self.tx.tephra.abort(
            snapshot.transaction_id,
            long=snapshot.type is LONG,
            checkpoints=snapshot.checkpoints,
        )

    def listed(self) -> tuple[int, ...]:
        return self.start().invalid


@pytest.fixture
def world() -> TephraWorld:
    return TephraWorld()


# Snapshots


def test_a_start_sees_what_stands_at_that_moment(world: TephraWorld) -> None:
    long = world.start(LONG)
    short = world.start()
    done = world.start()
    world.commit(done)
    found = world.start()
    assert found.read_pointer == done.transaction_id
    assert found.in_progress == (long.transaction_id, short.transaction_id)
    assert found.first_short == short.transaction_id
    assert found.write_pointer == found.transaction_id == world.clock.now_ms() * 1_000_000


def test_a_checkpoint_keeps_the_snapshot_and_its_level(world: TephraWorld) -> None:
    seen = world.start()
    world.commit(world.start())
    seen = replace(seen, level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT)
    first = world.tx.tephra.checkpoint(seen)
    second = world.tx.tephra.checkpoint(first)
    assert second.read_pointer == seen.read_pointer and second.level is seen.level
    assert second.checkpoints == (first.write_pointer, second.write_pointer)
    assert world.start().in_progress == (seen.transaction_id, *second.checkpoints)
    world.commit(second)
    assert world.start().read_pointer == second.write_pointer


def test_time_outs_and_client_ids_have_bounds(world: TephraWorld) -> None:
    for timeout_s, text in [
        (-5, "^timeout must be positive but is -5 seconds$"),
        (3_601, "^timeout must not exceed 3600 seconds but is 3601 seconds$"),
    ]:
        with pytest.raises(Invalid, match=text):
            world.tx.tephra.start(SHORT, None, timeout_s)
    with pytest.raises(Invalid, match="clientId"):
        world.tx.tephra.start(SHORT, "x" * 1_025)


# Conflicts


def test_a_lost_commit_leaves_the_transaction_open_without_its_changes(world: TephraWorld) -> None:
    winner, loser = world.start(client="w"), world.start()
    world.tx.tephra.can_commit(loser.transaction_id, [b"k"])
    world.commit(winner, b"k")
    with pytest.raises(TransactionConflict) as caught:
        world.commit(loser)
    assert caught.value.details["client"] == "w"
    assert world.tx.describe(loser.transaction_id).outcome == "open"
    world.reopen()
    world.commit(loser)  # its changes are gone


def test_of_those_that_are_written_together_with_the_same_change_the_first_wins(
    world: TephraWorld,
) -> None:
    """The others learn the winner; a commit that changed something else succeeds."""
    begun = [world.start(client=name) for name in ("first", "second", "other")]
    for seen, change in zip(begun, (b"k", b"k", b"l"), strict=True):
        world.tx.tephra.can_commit(seen.transaction_id, [change])
    commits = world.tx.manager.commits
    attempts = []
    with world.tx.manager._journal.writing:
        for number, seen in enumerate(begun):
            attempts.append(in_thread(lambda seen=seen: world.commit(seen)))
            until(lambda: len(commits) == number + 1)  # noqa: B023
    for one in (attempts[0], attempts[2]):
        one.result(PATIENCE_S)
    with pytest.raises(TransactionConflict) as caught:
        attempts[1].result(PATIENCE_S)
    assert caught.value.details["client"] == "first"
    assert caught.value.details["key"] == b"k".hex()
    outcomes = [world.tx.describe(one.transaction_id).outcome for one in begun]
    assert outcomes == ["committed", "open", "committed"]


def test_changes_survive_a_restart_and_a_commit_without_them_has_none(world: TephraWorld) -> None:
    one, other, keeps = world.start(), world.start(), world.start()
    world.tx.tephra.can_commit(one.transaction_id, [b"k"])
    world.reopen()
    world.commit(one)
    with pytest.raises(TransactionConflict):
        world.tx.tephra.can_commit(other.transaction_id, [b"k", b"l"])
    world.commit(keeps)


def test_long_ones_alone_are_not_checked(world: TephraWorld) -> None:
    one, other = world.start(LONG), world.start(LONG)
    world.commit(one, b"k")
    world.commit(other, b"k")


def test_a_change_set_that_the_journal_cannot_hold_is_refused(world: TephraWorld) -> None:
    id = world.start().transaction_id
    with pytest.raises(TooLarge, match=f"Change set for transaction {id} "):
        world.tx.tephra.can_commit(id, [bytes(CHANGES_BYTES_MAX)])
    world.tx.tephra.can_commit(id, [bytes(CHANGES_BYTES_MAX - 5)])
    world.tx.tephra.can_commit(id, [b"%6d" % number for number in range(500_000)])
    world.tx.tephra.commit(id, id)


def test_who_began_a_transaction_is_shown_while_it_is_open(world: TephraWorld) -> None:
    seen = world.start(client="me")
    assert [one.client for one in world.tx.open()] == ["me"]
    assert world.tx.describe(seen.transaction_id).client == "me"


def test_only_a_pointer_of_the_transaction_can_be_committed(world: TephraWorld) -> None:
    id = world.start().transaction_id
    with pytest.raises(Invalid, match="no write pointer"):
        world.tx.tephra.commit(id, id + 10**15)
    world.tx.tephra.commit(id, id)
    with pytest.raises(TransactionEnded):
        world.tx.tephra.commit(id, id)
    with pytest.raises(TransactionNotFound):
        world.tx.tephra.can_commit(77, [])


# Ends


@pytest.mark.parametrize("durability", [Durability.WRITTEN, Durability.SYNCED])
def test_a_commit_shows_what_was_published_in_it(
    world: TephraWorld, durability: Durability
) -> None:
    name = TopicName("default", "c")
    world.engine.create_topic(name, TopicSettings(1, durability=durability))
    seen = world.start()
    world.publish_in(seen.transaction_id, b"1", name=name)
    last = world.tx.tephra.checkpoint(seen)
    world.publish_in(last.write_pointer, b"2", name=name)
    world.publish(b"3", name=name)
    assert world.read(name) == []
    world.commit(last)
    assert world.read(name) == [b"1", b"2", b"3"]
    world.reopen()
    assert world.read(name) == [b"1", b"2", b"3"]


def test_a_commit_names_what_has_to_be_stored_for_it(world: TephraWorld) -> None:
    """A power loss that takes a message then takes the whole transaction."""
    seen = world.start()
    for value in (b"1", b"2"):
        world.publish_in(seen.transaction_id, value)
    world.publish_in(seen.transaction_id, b"3", name=B)
    world.commit(seen)
    entries = world.tx.manager._journal._topic.replay()
    edits = [edit for entry in entries for edit in decode_edits(entry.value or b"")]
    (committed,) = (edit for edit in edits if isinstance(edit, Committed))
    assert sorted(one.end_offset for one in committed.blocks) == [1, 2]


def test_an_abort_takes_back_what_was_published_in_it_and_its_checkpoints(
    world: TephraWorld,
) -> None:
    last = world.tx.tephra.checkpoint(world.start())
    world.publish_in(last.transaction_id, b"1")
    world.publish_in(last.write_pointer, b"2")
    world.publish(b"3")
    world.abort(last)
    assert world.read() == [b"3"]
    assert world.listed() == ()
    assert not world.tx._uncommitted.writes._writes
    world.abort(last)
    with pytest.raises(TransactionEnded):
        world.publish_in(last.write_pointer, b"late")


def test_an_abort_after_the_time_out_leaves_nothing_listed_and_nothing_seen(
    world: TephraWorld,
) -> None:
    last = world.tx.tephra.checkpoint(world.start())
    world.publish_in(last.write_pointer, b"1")
    world.clock.pass_ms(30_001)
    world.tx.manager.expire()
    assert world.listed() == (last.transaction_id, last.write_pointer)
    world.abort(last)
    assert world.listed() == ()
    assert world.read() == []
    assert not world.tx._uncommitted.writes._writes


@pytest.mark.parametrize("end", ["in progress", "invalid"])
def test_an_abort_after_a_restart_shortens_the_list_and_shows_nothing(
    world: TephraWorld, end: str
) -> None:
    last = world.tx.tephra.checkpoint(world.start())
    world.publish_in(last.transaction_id, b"1")
    world.publish_in(last.write_pointer, b"2")
    world.reopen()
    if end == "invalid":
        assert world.tx.tephra.invalidate(last.transaction_id)
    world.abort(last)
    assert world.listed() == ()
    world.publish(b"3")
    assert world.read() == [b"3"]
    world.reopen()
    assert world.read() == [b"3"]


def test_an_abort_after_half_a_commit_shows_nothing_though_nobody_remembers_its_end(
    world: TephraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    half = world.start()
    gone = TopicBlock(TopicName("default", "gone"), NewBlock(0, encode([b"2"])))
    request = commit(b"1", id=half.transaction_id)
    with pytest.raises(TopicNotFound):
        world.tx.commit(
            structs.replace(request, blocks=(*request.blocks, gone), durability=Durability.WRITTEN)
        )
    world.abort(half)
    for _ in range(2):
        world.abort(world.start())
    assert world.listed() == ()
    world.reopen()  # its writes are stored
    assert world.read() == []


def test_a_long_one_stays_invalid_however_often_it_is_aborted(world: TephraWorld) -> None:
    long = world.start(LONG)
    world.publish_in(long.transaction_id, b"1")
    for _ in range(2):
        world.abort(long)
        assert world.listed() == (long.transaction_id,)
    assert world.tx.abort(long.transaction_id).outcome == "invalid"
    assert world.listed() == (long.transaction_id,)
    world.reopen()
    assert world.listed() == (long.transaction_id,)
    assert world.read() == []


def test_an_abort_of_what_is_committed_or_unknown_changes_nothing(world: TephraWorld) -> None:
    done = world.start()
    world.publish_in(done.transaction_id, b"1")
    world.commit(done)
    world.abort(done)
    world.tx.tephra.abort(10**18, long=False, checkpoints=(done.transaction_id,))
    assert world.read() == [b"1"]
    assert world.start().read_pointer == done.transaction_id
    assert not world.tx.tephra.invalidate(done.transaction_id)


def test_what_is_truncated_is_not_listed_and_not_seen(world: TephraWorld) -> None:
    one, other = world.start(), world.start()
    world.publish_in(one.transaction_id, b"1")
    for each in (one, other):
        assert world.tx.tephra.invalidate(each.transaction_id)
    assert world.tx.tephra.invalid_count() == 2
    assert world.tx.tephra.truncate({other.transaction_id, 5})
    assert not world.tx.tephra.truncate({other.transaction_id})
    before_ms = world.clock.now_ms()
    assert world.tx.tephra.truncate_before(before_ms)
    assert not world.tx.tephra.truncate_before(before_ms)
    world.start()
    with pytest.raises(InvalidTruncateTime, match="are in-progress"):
        world.tx.tephra.truncate_before(world.clock.now_ms() + 1)
    assert world.read() == []
    world.reopen()
    assert world.read() == [] and world.tx.tephra.invalid_count() == 0


def test_a_reset_lets_readers_go_on_without_what_was_open(world: TephraWorld) -> None:
    busy = world.start()
    world.publish_in(busy.transaction_id, b"1")
    world.publish(b"2")
    woken = threading.Event()
    world.tx.manager.watch_end(busy.transaction_id, woken.set)
    world.tx.tephra.reset()
    assert woken.is_set()
    assert world.read() == [b"2"]
    with pytest.raises(TransactionEnded):
        world.commit(busy)
    world.abort(busy)
    found = world.start()
    assert (found.read_pointer, found.in_progress, found.invalid) == (0, (), ())
    world.reopen()
    assert world.read() == [b"2"]


# Together with publishing


def test_a_commit_waits_for_what_is_being_published_and_nothing_comes_after(
    world: TephraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = world.start()
    id = seen.transaction_id
    world.tx._uncommitted.writes.enter(id)  # in place of an append in progress
    thread = threading.Thread(target=world.commit, args=(seen,))
    thread.start()
    while not world.tx._uncommitted.writes._is_ending(id):
        pass
    with pytest.raises(Conflict):
        world.publish_in(id, b"late")
    assert world.tx.describe(id).outcome == "open"
    world.tx._uncommitted.writes.leave(id, (), (), True)
    thread.join(5)
    assert world.tx.describe(id).outcome == "committed"


def test_an_append_that_fails_makes_its_transaction_invalid(
    world: TephraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = world.start()
    failing = PendingAppend(1)
    monkeypatch.setattr(world.tx._uncommitted._publisher, "submit", lambda *_, **__: failing)
    pending = world.tx.submit(A, [NewBlock(0, encode([b"x"]))], seen.transaction_id)
    monkeypatch.undo()
    failing.fail(1, Conflict("no"))
    assert pending is failing
    until(lambda: world.listed() == (seen.transaction_id,), "it is invalid: another thread says so")
    world.abort(seen)
    assert world.read() == [] and world.listed() == ()


def test_of_more_than_is_remembered_nothing_is_sure(
    world: TephraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "REMEMBERED", 2)
    monkeypatch.setattr(published, "RANGES_MAX", 3)
    begun = [world.start() for _ in range(4)]
    for each in begun:
        world.publish_in(each.transaction_id, b"x")
    assert len(world.tx._uncommitted.writes._writes) == 2
    for _ in range(3):
        world.publish_in(begun[3].transaction_id, b"x")
    for each in reversed(begun):
        world.abort(each)
    assert world.read() == [] and world.listed() == ()
    assert not world.tx._uncommitted.writes._writes and world.tx._uncommitted.writes._ranges == 0
    forgotten = world.tx.manager.state.forgotten
    assert forgotten == {each.transaction_id for each in (begun[0], begun[1], begun[3])}


def test_what_is_under_way_or_being_ended_is_remembered_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "REMEMBERED", 1)
    writes = published.UncommittedWrites[str](1)
    writes.enter(5)
    writes.enter(6)
    writes.leave(6, ["other"], (), True)
    writes.leave(5, ["own"], (), True)
    with writes.ending(5) as found:
        assert (found.ranges, found.sure) == (["own"], True)
        writes.enter(7)
        with pytest.raises(Conflict):
            writes.enter(5)
        writes.leave(7, (), (), True)


def test_a_native_commit_includes_what_was_published_before(world: TephraWorld) -> None:
    id = world.start().transaction_id
    world.publish_in(id, b"1")
    world.tx.commit(commit(b"2", id=id))
    assert world.read() == [b"1", b"2"]
    assert not world.tx._uncommitted.writes._writes
    named = world.tx.manager.committed_blocks(id)
    assert [one.end_offset for one in named] == [1, 2], "what a power loss may take"


def test_many_at_a_time_agree(world: TephraWorld) -> None:
    """Threads publish, commit and abort at random; readers see exactly the committed messages,
    before and after a restart."""
    kept: set[bytes] = set()

    def work(seed: int) -> None:
        random = Random(seed)
        for number in range(25):
            seen = world.tx.tephra.start(SHORT, "c")
            values = [b"%d-%d-%d" % (seed, number, one) for one in range(2)]
            for value in values:
                world.publish_in(seen.write_pointer, value)
                if random.random() < 0.3:
                    seen = world.tx.tephra.checkpoint(seen)
            try:
                if random.random() < 0.3:
                    raise Conflict("give up")
                world.commit(seen, b"%d" % random.randrange(3))
                kept.update(values)
            except TMSError:
                world.abort(seen)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    for _ in range(2):
        assert sorted(world.read()) == sorted(kept)  # type: ignore[type-var]
        world.reopen()
    assert world.tx.open() == [] and world.listed() == ()


# The image


def test_the_image_has_the_bytes_of_a_genuine_server() -> None:
    """The bytes are from Tephra 0.16.1: a long one, a short one with two checkpoints that can
    commit two changes, an invalid one, and a committed change."""
    long, short, invalid = 1795243995312000000, 1795243995320000000, 1795243995322000000
    checkpoints = (1795243995325000000, 1795243995331000000)
    bound, expires = long - 1, 1795244025320
    image = TransactionImage(
        time_ms=1795243995332,
        read_pointer=1795243995328000000,
        write_pointer=checkpoints[1],
        invalid=(invalid,),
        in_progress=(
            InProgress(long, 1795330395312, 1795243995294000000, LONG),
            InProgress(short, expires, bound, SHORT, checkpoints),
            InProgress(checkpoints[0], expires, bound, None),
            InProgress(checkpoints[1], expires, bound, None),
        ),
        committing={short: (b"k1", b"k2")},
        committed={1795243995328000001: (b"z",)},
    )
    assert encode_image(image).hex() == GENUINE
    assert decode_image(bytes.fromhex(GENUINE)) == image


GENUINE = (
    "0888c38bcebf6880c0edaadeb9fee93180dbdbaddeb9fee93102808a91a5deb9fee931000880b0cc9bdeb9fee931e0b2"
    "bea0c068808eb78adeb9fee931020080f89ca3deb9fee931d0978fcebf68feafcc9bdeb9fee931000480a5ffa7deb9fe"
    "e93180dbdbaddeb9fee9310080a5ffa7deb9fee931d0978fcebf68feafcc9bdeb9fee931040080dbdbaddeb9fee931d0"
    "978fcebf68feafcc9bdeb9fee9310400000280f89ca3deb9fee93104046b31046b3200000282c0edaadeb9fee9310202"
    "7a0000"
)


def test_the_image_of_an_engine_names_everything(world: TephraWorld) -> None:
    long = world.start(LONG)
    last = world.tx.tephra.checkpoint(world.start())
    invalid = world.start()
    world.tx.tephra.invalidate(invalid.transaction_id)
    world.tx.tephra.can_commit(last.transaction_id, [b"k"])
    done = world.start()
    world.commit(done, b"z")
    image = world.tx.tephra.image(7)
    began = world.tx.manager.state.open[last.transaction_id].began
    assert image.time_ms == 7
    assert image.read_pointer == image.write_pointer == done.transaction_id
    assert image.invalid == (invalid.transaction_id,)
    assert [(one.pointer, one.type, one.checkpoints) for one in image.in_progress] == [
        (long.transaction_id, LONG, ()),
        (last.transaction_id, SHORT, last.checkpoints),
        (last.write_pointer, None, ()),
    ]
    assert {one.expires_ms for one in image.in_progress[1:]} == {began.expires_ms}
    assert image.committing == {last.transaction_id: (b"k",)}
    assert image.committed == {done.transaction_id + 1: (b"z",)}


def test_an_image_with_what_was_lost_comes_back_as_it_was() -> None:
    image = TransactionImage(1, 2, 3, (1,), (), {}, {}, ((4, 10), (2**62, 2**63 - 1)))
    assert decode_image(encode_image(image)) == image


def test_an_image_that_was_cut_off_or_of_another_version_is_refused() -> None:
    raw = bytes.fromhex(GENUINE)
    for end in range(len(raw)):
        with pytest.raises(DataCorrupt):
            decode_image(raw[:end])
    with pytest.raises(DataCorrupt, match="version"):
        decode_image(b"\x06" + raw[1:])


def test_an_empty_image_is_short() -> None:
    assert encode_image(TransactionImage(-1, 0, 64)) == bytes.fromhex("08010080010000 0000")


# Power


class Noting:
    """The durability of each write of the journal."""

    def __init__(self, world: TephraWorld) -> None:
        self.levels: list[Durability] = []
        self._write = world.tx.manager._journal._topic.write
        world.tx.manager._journal._topic.write = self.write  # type: ignore[method-assign]

    def write(self, entries: Sequence[Cells], durability: Durability) -> Appended:
        self.levels.append(durability)
        return self._write(entries, durability)


def test_what_a_client_was_told_is_synced(world: TephraWorld) -> None:
    noting = Noting(world)
    seen = world.start()
    assert noting.levels.pop() is Durability.SYNCED
    seen = world.tx.tephra.checkpoint(seen)
    assert noting.levels.pop() is Durability.SYNCED
    world.tx.tephra.can_commit(seen.transaction_id, [b"k"])
    assert noting.levels.pop() is Durability.SYNCED
    world.commit(seen)
    assert noting.levels.pop() is Durability.SYNCED


@pytest.mark.parametrize("last_fails", [False, True])
def test_requests_that_come_together_share_a_sync(world: TephraWorld, last_fails: bool) -> None:
    seen, tephra = world.start(), world.tx.tephra
    noting = Noting(world)
    unknown = replace(seen, transaction_id=77)
    asked = [seen, seen, unknown, seen] if not last_fails else [seen, seen, seen, unknown]
    found: list[Snapshot] = []
    failed: list[TMSError] = []

    def ask(snapshot: Snapshot) -> None:
        try:
            found.append(tephra.checkpoint(snapshot))
        except TMSError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(each,)) for each in asked]
    with tephra._requests._turn:
        for count, thread in enumerate(threads, 1):
            thread.start()
            while len(tephra._requests) < count:
                pass
    for thread in threads:
        thread.join(5)
    assert noting.levels.count(Durability.SYNCED) == 1
    assert noting.levels[-1] is Durability.SYNCED
    assert len({one.write_pointer for one in found}) == 3
    assert [type(error) for error in failed] == [TransactionNotFound]


def test_a_journal_that_fails_fails_all_that_wait_and_works_again(world: TephraWorld) -> None:
    seen, tephra = world.start(), world.tx.tephra
    write = world.tx.manager._journal._topic.write

    def failing(entries: Sequence[Cells], durability: Durability) -> Appended:
        raise StorageUnavailable("The disk is away.")

    world.tx.manager._journal._topic.write = failing  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        tephra.checkpoint(seen)
    world.tx.manager._journal._topic.write = write  # type: ignore[method-assign]
    assert len(tephra.checkpoint(seen).checkpoints) == 1
