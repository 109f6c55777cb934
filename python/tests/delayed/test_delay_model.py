"""Random publishes, cancels, erasings, moves, clocks, failures and crashes against a plain model of
delayed messages."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import TypeVar

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from tests.bounds_kit import SEEDS, bounds_of
from tests.delay_kit import PARTITIONS, A, World
from tests.run_seed import examples
from tms.block import encode
from tms.errors import TMSError
from tms.model.delayed import Deferred, DelayedId, DelayedMessage, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability

T = TypeVar("T")
KEYS = [b"a", b"b", b"c"]
DELAYS = st.integers(0, 50)
FAILS = st.sampled_from(["", "", "stored", "lost"])


class DelayedModel(stateful.RuleBasedStateMachine):
    """An engine, and the model of its delayed messages."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = ExitStack()
        self.number = 0
        self.due: dict[DelayedId, bytes] = {}  # what waits
        self.delivered: Counter[bytes] = Counter()
        self.requests: list[tuple[str, dict[int, list[bytes]], Due]] = []
        self.ids: list[DelayedId] = []

    @stateful.initialize(shared=st.booleans(), bounds=SEEDS)
    def begin(self, shared: bool, bounds: int) -> None:
        drawn = bounds_of(bounds)
        self.bounds.enter_context(drawn.set())
        config = drawn.config(threads=2)
        self.world = World(shared, durability=Durability.SYNCED, config=config)

    def teardown(self) -> None:
        with self.bounds:
            self.world.clock.pass_ms(10_000_000)
            self.move()
            assert not self.due
            self.what_is_delivered_is_what_is_due()
            self.world.engine.close()

    # -- clients ---------------------------------------------------------------------------------

    @stateful.rule(
        counts=st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(1, 3), min_size=1),
        delay_ms=DELAYS,
        absolute=st.booleans(),
        fails=FAILS,
    )
    def publish(self, counts: dict[int, int], delay_ms: int, absolute: bool, fails: str) -> None:
        values = {partition: [self._value() for _ in range(n)] for partition, n in counts.items()}
        now_ms = self.world.clock.now_ms()
        due = Due(at_ms=now_ms + delay_ms - 10) if absolute else Due(delay_ms=delay_ms)
        token = str(self.number)
        self.requests.append((token, values, due))
        for one in self._surely(lambda: self._together(values, due, token), fails, 1):
            assert one.due_ms == max(now_ms, due.after(now_ms))
            for id, value in zip(one.ids(), values[one.partition], strict=True):
                self.due[id] = value
                self.ids.append(id)

    @stateful.precondition(lambda self: self.requests)
    @stateful.rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        token, values, due = data.draw(st.sampled_from(self.requests[-5:]))
        for one in self._together(values, due, token):
            assert set(one.ids()) <= set(self.ids)

    @stateful.precondition(lambda self: self.ids)
    @stateful.rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids[-10:]))
        if id.due_ms <= self.world.clock.now_ms() and id not in self.due:
            return  # delivered or cancelled: a cancelled message may have either answer
        waits = id in self.due
        assert self.world.delayed.cancel(A, id) or not waits
        self.due.pop(id, None)

    @stateful.rule(key=st.sampled_from(KEYS), fails=FAILS, nth=st.integers(1, 4))
    def erase(self, key: bytes, fails: str, nth: int) -> None:
        waiting = sum(_key(value) == key for value in self.due.values())
        erased = self._surely(lambda: self.world.engine.erase(A, key=key), fails, nth)
        assert fails or erased >= waiting  # and those that came
        self.due = {id: value for id, value in self.due.items() if _key(value) != key}
        for value in [value for value in self.delivered if _key(value) == key]:
            del self.delivered[value]
        assert self.world.engine.erase(A, key=key) == 0

    # -- time, and events --------------------------------------------------------------------------

    @stateful.rule(ms=st.sampled_from([1, 3, 10, 60]))
    def pass_ms(self, ms: int) -> None:
        self.world.clock.pass_ms(ms)

    @stateful.rule(ms=st.sampled_from([-40, -5, 30]))
    def jump(self, ms: int) -> None:
        self.world.clock.jump_ms(ms)

    @stateful.rule()
    def move(self) -> None:
        self.world.delayed.move()
        now_ms = self.world.clock.now_ms()
        for id in [id for id in self.due if id.due_ms <= now_ms]:
            self.delivered[self.due.pop(id)] += 1

    @stateful.rule()
    def restart(self) -> None:
        self.world.restart()

    @stateful.rule()
    def kill(self) -> None:
        self.world.kill()

    @stateful.rule(seed=st.integers(0, 100))
    def lose_power(self, seed: int) -> None:
        self.world.lose_power(Random(seed))

    @stateful.rule()
    def tidy(self) -> None:
        self.world.delayed.tidy()

    # -- invariants --------------------------------------------------------------------------------

    @stateful.invariant()
    def what_is_delivered_is_what_is_due(self) -> None:
        assert Counter(self.world.read()) == self.delivered

    @stateful.invariant()
    def what_waits_is_counted_and_listed(self) -> None:
        found: list[DelayedMessage] = []
        while more := self.world.delayed.messages(A, found[-1].id if found else None):
            found += more
        assert {one.id: one.value for one in found} == self.due
        assert [one.id for one in found] == sorted(self.due)
        info = self.world.delayed.info(A)
        assert info.waiting == len(self.due)
        if self.due:
            assert info.next_due_ms is not None and info.next_due_ms <= min(self.due).due_ms

    def _value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def _together(self, values: dict[int, list[bytes]], due: Due, token: str) -> list[Deferred]:
        blocks = [
            NewBlock(partition, encode(some, [_key(value) for value in some]))
            for partition, some in values.items()
        ]
        return self.world.delayed.publish(A, blocks, due, None, token)

    def _surely(self, do: Callable[[], T], fails: str, nth: int) -> T:
        """Run an operation, repeated after the nth write has failed."""
        if fails:
            self.world.store.fail_write(nth, stored=fails == "stored")
        try:
            for _ in range(5):
                try:
                    return do()
                except TMSError as error:
                    assert error.retriable
                    self.world.engine.maintenance.recover()
            raise AssertionError("it does not end")
        finally:
            self.world.store.heal()


def _key(value: bytes) -> bytes:
    return KEYS[int(value) % len(KEYS)]


@pytest.mark.parametrize("count", examples(20, 60))
def test_delayed_messages_agree_with_the_model(count: int) -> None:
    stateful.run_state_machine_as_test(
        DelayedModel, settings=settings(max_examples=count, stateful_step_count=25)
    )
