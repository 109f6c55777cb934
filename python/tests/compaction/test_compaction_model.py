"""Random publishing, transactions, compaction and crashes against a plain model.

Invariants after each step, for readers of committed messages:

    every message shown was published and committed, with its id and offset, in order
    the newest committed message of each key is shown, unless it is a tombstone that may be gone
    no message is shown that was once missing
    from any offset on, a reader gets exactly the messages shown from there on
"""

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from sim.faulty import FaultyStore
from tests.bounds_kit import SEEDS, bounds_of
from tests.compaction_kit import NAME, Seen, World, compacted
from tests.log_kit import KeptStore
from tests.run_seed import examples
from tms.block import encode
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.topic import Durability

KEYS = st.sampled_from([None, b"a", b"b", b"c", b"k" * 30])
VALUES = st.sampled_from([None, b"", b"v", b"w" * 50])
MESSAGES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
WRITES = ("overwrite", "delete", "compare_and_set", "reclaim")


class Compaction(stateful.RuleBasedStateMachine):
    """One partition, its engine, and the published messages."""

    shared = False

    def __init__(self) -> None:
        super().__init__()
        self.bounds = ExitStack()
        self.shown: dict[int, tuple[bytes | None, bytes | None]] = {}  # committed, by offset
        self.ids: dict[int, object] = {}
        self.gone: set[int] = set()
        self.forgettable: dict[int, int] = {}  # tombstones, by the time from which they may be gone
        self.open: list[tuple[int, list[tuple[bytes | None, bytes | None]], int]] = []

    @stateful.initialize(keys_max=st.sampled_from([1, 3, 500]), bounds=SEEDS)
    def start(self, keys_max: int, bounds: int) -> None:
        drawn = bounds_of(bounds)
        self.bounds.enter_context(drawn.set())
        wanted, store = compacted(durability=Durability.SYNCED), KeptStore(shared=self.shared)
        self.world = World(wanted, keys_max, store, drawn)

    def teardown(self) -> None:
        with self.bounds:
            self.world.engine.close()

    # -- publishing --------------------------------------------------------------------------------

    @stateful.rule(messages=MESSAGES)
    def publish(self, messages: list[tuple[bytes | None, bytes | None]]) -> None:
        for offset, message in zip(self.world.publish(*messages), messages, strict=True):
            self._show(offset, message)

    @stateful.rule(messages=MESSAGES, staged=st.booleans())
    @stateful.precondition(lambda self: len(self.open) < 2)
    def begin(self, messages: list[tuple[bytes | None, bytes | None]], staged: bool) -> None:
        """Begin a transaction with messages that no reader sees yet."""
        if staged:
            self.open.append((self.world.stage(*messages), messages, -1))
            return
        tx = self.world.engine.transactions
        id = tx.begin(timeout_s=600).transaction_id
        block = encode([value for _, value in messages], [key for key, _ in messages])
        (place,) = tx.submit(NAME, [NewBlock(0, block)], id).result(5)
        self.open.append((id, messages, place.base_offset))

    @stateful.rule(
        data=st.data(), outcome=st.sampled_from(["commit", "commit", "abort", "invalidate"])
    )
    @stateful.precondition(lambda self: self.open)
    def end(self, data: st.DataObject, outcome: str) -> None:
        id, messages, offset = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        tx = self.world.engine.transactions
        if outcome != "commit":
            getattr(tx, outcome)(id)
            return
        if offset >= 0:
            from tms.model.transaction import Commit

            tx.commit(Commit(id))
        else:
            offset = self.world.log.state.end_offset
            self.world.commit(id)
        for at, message in enumerate(messages, offset):
            self._show(at, message)

    def _show(self, offset: int, message: tuple[bytes | None, bytes | None]) -> None:
        self.shown[offset] = message

    # -- events in between -------------------------------------------------------------------------

    @stateful.rule()
    def seal(self) -> None:
        self.world.seal()

    @stateful.rule(hours=st.integers(1, 30))
    def wait(self, hours: int) -> None:
        if not self.open:
            self.world.clock.pass_ms(hours * 3_600_000)

    @stateful.rule()
    def compact(self) -> None:
        self.world.compact()

    @stateful.rule()
    def restart(self) -> None:
        if not self.open:
            self.world.restart()

    @stateful.rule(step=st.integers(1, 12), power=st.booleans(), seed=st.integers(0, 9))
    def crash(self, step: int, power: bool, seed: int) -> None:
        """The process dies before some write of a compaction; with the power, unsynced writes are
        lost, too."""
        if self.open:
            return
        self._crash_in(self.world.compact, step, power, seed)

    @stateful.rule(nth=st.integers(1, 8), stored=st.booleans())
    def fail(self, nth: int, stored: bool) -> None:
        """A write of a compaction fails; the next one succeeds."""
        self.world.store.fail_write(nth, stored=stored)
        self.world.compact()
        self.world.store.heal()
        self.world.engine.maintenance.recover()

    @stateful.rule(data=st.data())
    @stateful.precondition(lambda self: self.shown)
    def erase(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.shown)))
        key = self.shown[offset][0]
        if key is None:
            return
        before = {one.offset for one in self.world.read()}
        undecided = sum(k == key for _, messages, at in self.open for k, _ in messages if at >= 0)
        erased = self.world.engine.erase(NAME, key=key)
        wanted = {at for at, (k, _) in self.shown.items() if k == key}
        assert erased >= len(wanted & before)
        assert erased >= undecided
        for at in wanted:
            del self.shown[at]
        self.open = (
            [
                (id, [m for m in messages if m[0] != key] if at >= 0 else messages, at)
                for id, messages, at in self.open
                if at < 0 or all(m[0] != key for m in messages)
            ]
            if undecided == 0
            else self._without(key)
        )

    def _without(
        self, key: bytes
    ) -> list[tuple[int, list[tuple[bytes | None, bytes | None]], int]]:
        """Abort transactions whose messages in the log were erased: this keeps the model plain."""
        left = []
        for id, messages, at in self.open:
            if at >= 0 and any(k == key for k, _ in messages):
                self.world.engine.transactions.abort(id)
            else:
                left.append((id, messages, at))
        return left

    def _crash_in(self, work: Callable[[], None], step: int, power: bool, seed: int) -> None:
        world = self.world
        with world.dying_at(step, WRITES):
            work()
        world.engine._threads.shutdown(wait=True)
        inner = world.store.crash(Random(seed)) if power else world.store.inner
        world.store = FaultyStore(inner)
        world.clock.pass_ms(1)
        world.open()

    # -- invariants --------------------------------------------------------------------------------

    @stateful.invariant()
    def what_is_shown_is_right(self) -> None:
        seen = self.world.read()
        offsets = [one.offset for one in seen]
        assert offsets == sorted(set(offsets))
        bound = self._bound()
        for one in seen:
            assert self.shown.get(one.offset) == (one.key, one.value), one
            assert self.ids.setdefault(one.offset, one.id) == one.id
            assert one.offset not in self.gone, one
        assert [one.id for one in seen] == sorted(one.id for one in seen)
        there = set(offsets)
        self.gone.update(at for at in self.shown if at not in there and at < bound)
        self._newest_are_there(there, bound)
        self._positions_are_right(seen)

    def _newest_are_there(self, there: set[int], bound: int) -> None:
        newest: dict[bytes, int] = {}
        for offset, (key, _) in sorted(self.shown.items()):
            if offset < bound:
                if key is None:
                    assert offset in there
                else:
                    newest[key] = offset
        for offset in newest.values():
            is_tombstone = self.shown[offset][1] is None
            assert offset in there or is_tombstone, offset

    def _positions_are_right(self, seen: list[Seen]) -> None:
        for start in range(0, min(self._bound(), self.world.log.state.end_offset), 5):
            assert self.world.read(Position.offset(start)) == [s for s in seen if s.offset >= start]

    def _bound(self) -> int:
        """The offset at which readers wait for a transaction."""
        return min((at for _, _, at in self.open if at >= 0), default=1 << 60)


class SharedCompaction(Compaction):
    """The model in a store that others may write to, where every start takes over."""

    shared = True


@pytest.mark.parametrize("count", examples(20, 60))
def test_compaction_agrees_with_the_model(count: int) -> None:
    stateful.run_state_machine_as_test(
        Compaction, settings=settings(max_examples=count, stateful_step_count=30)
    )


@pytest.mark.parametrize("count", examples(10, 30))
def test_compaction_of_a_shared_store_agrees_with_the_model(count: int) -> None:
    stateful.run_state_machine_as_test(
        SharedCompaction, settings=settings(max_examples=count, stateful_step_count=30)
    )
