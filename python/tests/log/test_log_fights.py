"""Two owners of a partition that act at any time, and their checked history."""

import random
from collections import deque

import pytest

from tests.log_kit import NAME, Seen, block
from tests.owners_kit import Later, LateStore, Processes
from tests.run_seed import drawn
from tms.errors import StorageUnavailable, TMSError
from tms.log import writer
from tms.model.message import Appended, NewBlock


class Fight:
    """Two owners that interrupt each other before any operation on the store, lose answers, die and
    come back. Requests without an answer are sent again; acknowledged ones are remembered."""

    def __init__(self, seed: int, most: int) -> None:
        self.random = random.Random(seed)
        self.most = most  # requests at once
        self.both = Processes(2, Later, segment_bytes=4_000)
        self.acknowledged: dict[int, bytes] = {}
        self.reads: list[list[Seen]] = []
        self.depth = 0
        self.sequences = [0, 0]
        self.unsure: list[deque[tuple[int, bytes]]] = [deque(), deque()]
        for store in self.both.stores:
            self._arm(store)

    def _arm(self, store: LateStore) -> None:
        store.before = self._before
        store.delays = lambda name: name.startswith("t") and self.random.random() < 0.1

    def look(self) -> None:
        """Look at the store, before each of its operations; subclasses override it."""

    def _before(self, operation: str, name: str) -> None:
        self.look()
        if operation == "get" and self.random.random() < 0.03:
            raise StorageUnavailable("No answer came.")
        if self.depth == 1 and self.random.random() < 0.15:
            self.step(1 - self.busy)

    def step(self, number: int) -> None:
        self.depth += 1
        self.busy = number if self.depth == 1 else self.busy
        try:
            self._act(number)
        except TMSError:
            pass
        finally:
            self.depth -= 1

    def publish(self, number: int) -> None:
        """Send more requests, after those without an answer."""
        self.both.clock.pass_ms(1)
        engine, unsure = self.both.engines[number], self.unsure[number]
        for _ in range(self.random.randint(1, self.most)):
            sequence, self.sequences[number] = self.sequences[number], self.sequences[number] + 1
            unsure.append((sequence, b"%d of %d" % (sequence, number)))
        sent = []
        for sequence, value in unsure:
            made = block(value, producer=number + 1, sequence=sequence)
            sent.append(engine.submit(NAME, [NewBlock(0, made)], None))
        threads = engine._threads
        assert isinstance(threads, Later)
        threads.run()
        for pending in sent:
            self.acknowledge(pending.result(0)[0], unsure[0][1])
            unsure.popleft()

    def end(self) -> list[Seen]:
        """Let all writes in flight land; returns the final messages."""
        for store in self.both.stores:
            store.before = lambda operation, name: None
            store.delays = lambda name: False
            store.land()
        self.both.start_anew(0)
        return self.both.read(0)

    def acknowledge(self, appended: Appended, value: bytes) -> None:
        known = self.acknowledged.get(appended.base_offset, value)
        assert known == value, "one offset, two messages"
        self.acknowledged[appended.base_offset] = value

    def _act(self, number: int) -> None:
        what = self.random.random()
        if what < 0.6:
            self.publish(number)
        elif what < 0.8:
            self.reads.append(self.both.read(number))
        elif what < 0.9:
            self.both.stores[number].land(
                lambda rows: [r for r in rows if self.random.random() < 0.7]
            )
        elif self.depth == 1:
            self.both.start_anew(number)
            self._arm(self.both.stores[number])


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("seed", drawn("fights", range(40), 10))
def test_nothing_acknowledged_is_lost_or_moved_whatever_two_owners_do(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)  # each request is a group of its own
    fight = Fight(seed, most)
    for _ in range(50):
        fight.step(fight.random.randrange(2))
    final = fight.end()
    found = {one.offset: one.value for one in final}
    assert [one.offset for one in final] == list(range(len(final)))
    assert {offset: found.get(offset) for offset in fight.acknowledged} == fight.acknowledged
    assert len(set(found.values())) == len(found), "a message is there twice"
    assert [one.id for one in final] == sorted(one.id for one in final)
    for read in fight.reads:
        assert read == final[: len(read)], "a reader saw something else"
