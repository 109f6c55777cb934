"""The pure state of a queue's partition, beside a plain model that keeps every message as one
record and looks at all of them each time."""

from array import array
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from sys import getsizeof
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from tests.bounds_kit import SEEDS, bounds_of
from tests.run_seed import examples
from tms.errors import DataCorrupt, Invalid, TooLarge
from tms.model.queue import TOKENS_MAX, QueueSettings, Token
from tms.model.topic import TopicName
from tms.queues.checks import parse_tokens
from tms.queues.deadlines import BUCKET_MS, Deadlines
from tms.queues.entries import (
    Advanced,
    Declared,
    Leased,
    PartitionEdit,
    PartitionSnapshot,
    Rejected,
    Released,
    Rewound,
    Settled,
    decode_edit,
    decode_key,
    decode_queue,
    encode,
    queue_key,
)
from tms.queues.key_order import NO_KEY, KeyOrder, key_hash, pack, unpack
from tms.queues.partition import BLOCKED, DYING, LEASED, WAITING, QueuePartitionState
from tms.queues.runs import add_range, offsets_in, runs_of
from tms.queues.state import Decision, QueueState, backoff_ms

JOBS = TopicName("default", "jobs")
EPOCH, LIMIT, LEASE_MS = 7, 3, 1_000
KEYS = [NO_KEY, 1, (1 << 60) - 1]


def is_due(time_ms: int, now_ms: int) -> bool:
    """True if a time has ended, at the end of its bucket; 0 is at once."""
    return time_ms == 0 or (time_ms // BUCKET_MS + 1) * BUCKET_MS <= now_ms


@dataclass
class Plain:
    """A message of the model."""

    state: int
    time_ms: int
    deliveries: int
    key: bytes
    held: int = 0
    releases: int = 0

    @property
    def number(self) -> int:
        """The number of its delivery."""
        return self.releases << 20 | self.deliveries


class Model:
    """All messages by offset; absent ones are settled."""

    def __init__(self) -> None:
        self.messages: dict[int, Plain] = {}

    def is_first(self, offset: int) -> bool:
        key = self.messages[offset].key
        same = [o for o, one in self.messages.items() if one.key == key]
        return key == NO_KEY or min(same) == offset

    def look(self, now_ms: int) -> None:
        """Let leases and delays end."""
        for offset, one in self.messages.items():
            if one.held or not is_due(one.time_ms, now_ms):
                continue
            if one.state == LEASED:
                one.state = DYING if one.deliveries >= LIMIT else WAITING
                one.time_ms = 0
            if one.state == BLOCKED and self.is_first(offset):
                one.state, one.time_ms = WAITING, 0

    def settle(self, offset: int) -> None:
        del self.messages[offset]


class Agreement(stateful.RuleBasedStateMachine):
    """The state, its journal, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = ExitStack()
        self.now_ms = 50_000
        self.model = Model()
        self.journal: list[tuple[int, PartitionEdit]] = []  # time and edit
        self.frontier = 0
        self.pointers = 0

    def teardown(self) -> None:
        self.bounds.close()

    @stateful.initialize(ordered=st.booleans(), bounds=SEEDS)
    def declare(self, ordered: bool, bounds: int) -> None:
        self.bounds.enter_context(bounds_of(bounds).set())
        self.settings = QueueSettings(deliveries_max=LIMIT, ordered_by="key" if ordered else "")
        self.queue = self.made()
        self.state = self.queue.partitions[0]

    def made(self) -> QueueState:
        return QueueState(Declared(self.settings, EPOCH, 1, 0))

    def do(self, edit: PartitionEdit) -> None:
        self.journal.append((self.now_ms, edit))
        self.state.apply(edit, self.now_ms)

    def look(self) -> None:
        """Tell both the time."""
        while (next_ms := self.queue.next_ms()) is not None and next_ms <= self.now_ms:
            self.queue.expire(self.now_ms)
        self.model.look(self.now_ms)

    @stateful.rule(
        cells=st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS)), min_size=1, max_size=5),
    )
    def advance(self, cells: list[tuple[bool, bytes]]) -> None:
        """Look at new messages; some offsets are gaps."""
        ordered = self.settings.ordered_by == "key"
        leased: list[int] = []
        blocked: list[int] = []
        keys: dict[int, bytes] = {}
        taken: set[bytes] = set()
        first = self.frontier
        for offset, (there, key) in enumerate(cells, first):
            if not there:
                continue
            key = key if ordered else NO_KEY
            order = self.state.order
            free = key == NO_KEY or (order is not None and order.is_free(key) and key not in taken)
            taken.add(key)
            keys[offset] = key
            (leased if free else blocked).append(offset)
            time_ms = self.now_ms + LEASE_MS if free else 0
            kind = LEASED if free else BLOCKED
            self.model.messages[offset] = Plain(kind, time_ms, int(free), key)
        self.frontier += len(cells)
        hashes = pack([keys[o] for o in leased + blocked]) if ordered else b""
        self.do(
            Advanced(
                first,
                self.frontier,
                self.frontier,
                runs_of(leased),
                LEASE_MS,
                self.now_ms,
                runs_of(blocked),
                hashes,
            )
        )

    @stateful.rule(limit=st.integers(1, 4))
    def redeliver(self, limit: int) -> None:
        self.look()
        messages = self.model.messages
        expected = sorted(o for o in messages if self.is_ready(o))[:limit]
        found = self.state.take_ready(self.now_ms, limit)
        assert found == expected
        if found:
            numbers = [self.state.number(o) + 1 for o in found]
            runs = [cell for o in found for cell in (o, 1)]
            self.do(Leased(runs, numbers, LEASE_MS, self.now_ms))
        for offset in found:
            one = messages[offset]
            one.state, one.time_ms = LEASED, self.now_ms + LEASE_MS
            one.deliveries += 1

    def is_ready(self, offset: int) -> bool:
        one = self.model.messages[offset]
        return one.state == WAITING and is_due(one.time_ms, self.now_ms) and not one.held

    @stateful.rule(
        offset=st.integers(0, 40),
        deliveries=st.integers(0, LIMIT),
        releases=st.integers(0, 1),
        count=st.integers(1, 3),
    )
    def ack(self, offset: int, deliveries: int, releases: int, count: int) -> None:
        self.look()
        number = releases << 20 | deliveries
        token = Token(0, offset, number, EPOCH, count)
        decision = self.queue.settle([token])
        good = [o for o in range(offset, offset + count) if self.is_good(o, number)]
        assert decision.done == len(good)
        assert {one.offset for one in decision.late} == {*range(offset, offset + count)} - {*good}
        for _, edit in decision.edits:
            self.do(edit)
        for o in good:
            self.model.settle(o)

    def is_good(self, offset: int, number: int, dying: bool = True) -> bool:
        one = self.model.messages.get(offset)
        return (
            one is not None
            and one.number == number
            and one.deliveries > 0
            and (dying or one.state != DYING)
            and not one.held
        )

    @stateful.rule(offset=st.integers(0, 40), delay_ms=st.sampled_from([0, 300, 2_000]))
    def nack(self, offset: int, delay_ms: int) -> None:
        self.look()
        number = self.delivery_of(offset)
        decision = self.queue.nack(
            [Token(0, offset, number, EPOCH)], delay_ms, "", self.now_ms, Random(1)
        )
        assert decision.done == self.is_good(offset, number, dying=False)
        for _, edit in decision.edits:
            self.do(edit)
            one = self.model.messages[offset]
            one.state = DYING if one.deliveries >= LIMIT else WAITING
            one.time_ms = self.now_ms + delay_ms if delay_ms else 0

    def delivery_of(self, offset: int) -> int:
        one = self.model.messages.get(offset)
        return 0 if one is None else one.number

    @stateful.rule(offset=st.integers(0, 40))
    def release(self, offset: int) -> None:
        self.look()
        number = self.delivery_of(offset)
        token = Token(0, offset, number, EPOCH)
        good = self.is_good(offset, number)
        decision = self.queue.release([token])
        assert decision.done == good
        for _, edit in decision.edits:
            self.do(edit)
            one = self.model.messages[offset]
            one.state, one.time_ms = WAITING, 0
            one.deliveries, one.releases = one.deliveries - 1, one.releases + 1
        if good:
            assert self.queue.release([token]) == Decision([], 1, [])
            assert self.queue.settle([token]).done == 0

    @stateful.rule(offset=st.integers(0, 40), lease_ms=st.sampled_from([100, 5_000]))
    def extend(self, offset: int, lease_ms: int) -> None:
        self.look()
        number = self.delivery_of(offset)
        decision = self.queue.extend([Token(0, offset, number, EPOCH)], lease_ms, self.now_ms)
        assert decision.done == self.is_good(offset, number, dying=False)
        for _, edit in decision.edits:
            self.do(edit)
            one = self.model.messages[offset]
            one.state, one.time_ms = LEASED, self.now_ms + lease_ms

    @stateful.rule(offset=st.integers(0, 40))
    def reject(self, offset: int) -> None:
        self.look()
        number = self.delivery_of(offset)
        decision = self.queue.reject([Token(0, offset, number, EPOCH)], "no good")
        assert decision.done == self.is_good(offset, number)
        for _, edit in decision.edits:
            self.do(edit)
            self.model.messages[offset].state = DYING

    @stateful.rule(limit=st.integers(1, 3))
    def bury(self, limit: int) -> None:
        self.look()
        found = self.state.take_dying(limit)
        dying = {o for o, one in self.model.messages.items() if one.state == DYING and not one.held}
        assert {*found} <= dying and len({*found}) == min(limit, len(dying))
        if found:
            self.do(Settled(runs_of({*found})))
        for offset in {*found}:
            self.model.settle(offset)

    @stateful.rule(offset=st.integers(0, 40))
    def hold(self, offset: int) -> None:
        self.look()
        number = self.delivery_of(offset)
        if self.is_good(offset, number):
            self.pointers += 1
            self.state.hold([offset], self.pointers)
            self.model.messages[offset].held = self.pointers

    @stateful.rule()
    def release_held(self) -> None:
        for offset, pointer in list(self.state.held.items()):
            self.state.release_held([offset], pointer)
            self.model.messages[offset].held = 0
        self.wait(1)

    @stateful.rule(buckets=st.integers(1, 15))
    def wait(self, buckets: int) -> None:
        self.now_ms += buckets * BUCKET_MS
        self.look()

    @stateful.rule(chunk=st.integers(1, 3), cut=st.booleans())
    def restart(self, chunk: int, cut: bool) -> None:
        """Replay the journal as a start does, or a snapshot of it, whole or cut."""
        held = dict(self.state.held)
        with patch("tms.queues.partition.RUNS_MAX", chunk):
            chunks = [*self.state.snapshot(self.now_ms, self.now_ms)]
        kept = [(self.now_ms, edit) for edit in chunks]
        if cut and len(kept) > 1:
            self.journal += kept[:-1]
        else:
            self.journal = kept
        self.queue = self.made()
        self.state = self.queue.partitions[0]
        for when_ms, edit in self.journal:
            coded = decode_edit(b"", encode(edit))
            self.state.apply(coded, self.now_ms, self.now_ms - when_ms)
        for offset, pointer in [*self.state.held.items()]:
            if held.get(offset) != pointer:  # its transaction has failed meanwhile
                self.state.release_held([offset], pointer)
        assert self.state.held == held or cut
        for offset, pointer in held.items():
            self.state.hold([offset], pointer)
        self.wait(1)  # ended leases are noticed with the next bucket

    @stateful.invariant()
    def they_agree(self) -> None:
        self.look()
        messages, state = self.model.messages, self.state
        assert set(state.out) == set(messages)
        assert state.frontier == self.frontier
        assert state.cursor() == min(messages, default=self.frontier)
        kinds = {offset: value >> 20 & 7 for offset, value in state.out.items()}
        assert state.counts == [[*kinds.values()].count(kind) for kind in range(4)]
        totals = self.queue.totals
        assert (totals.outstanding, totals.held) == (len(state.out), len(state.held))
        for offset, one in messages.items():
            # A message held again after a restart is leased, though its lease ended before.
            assert kinds[offset] == one.state or (one.held and kinds[offset] == LEASED)
        assert {o: state.number(o) for o in state.out} == {
            o: one.number for o, one in messages.items()
        }

    @stateful.precondition(lambda self: self.settings.ordered_by == "key")
    @stateful.invariant()
    def of_a_key_only_the_first_is_with_a_worker(self) -> None:
        self.look()
        for offset, one in self.model.messages.items():
            assert (self.state.out[offset] >> 20 & 7 == BLOCKED) == (one.state == BLOCKED)


@pytest.mark.parametrize("count", examples(40, 120))
def test_it_agrees_with_the_model(count: int) -> None:
    stateful.run_state_machine_as_test(
        Agreement, settings=settings(max_examples=count, stateful_step_count=40)
    )


def leased(count: int, lease_ms: int = 30_000) -> QueuePartitionState:
    state = QueuePartitionState()
    for first in range(0, count, 100):
        stop = min(first + 100, count)
        state.apply(Advanced(first, stop, stop, [first, stop - first], lease_ms, 0), 0)
    return state


@pytest.mark.slow
def test_a_million_leases_fit_into_200_mib() -> None:
    state = QueuePartitionState()
    for offset in range(200_000):  # each with a time of its own: the worst case
        edit = Advanced(offset, offset + 1, offset, [offset, 1], 30_000 + offset, 0)
        state.apply(edit, 1 << 36)
    assert len(set(state.out.values())) == 200_000
    first = next(iter(state.out.values()))
    buckets = sum(getsizeof(bucket) + 300 for bucket in state.deadlines._buckets.values())
    size = getsizeof(state.out) + 200_000 * (getsizeof(first) + 32) + buckets
    assert 5 * size <= 200 << 20


def test_acknowledging_everything_leaves_nothing_behind() -> None:
    state = leased(100_000)
    for first in range(0, 100_000, 100):
        state.apply(Settled([first, 100]), 0)
    assert not state.out and state.cursor() == state.frontier == 100_000
    assert state.deadlines.size <= 4_096


def test_the_cursor_passes_what_was_settled_out_of_order() -> None:
    state = leased(100_000)
    state.apply(Settled([1, 99_999]), 0)
    assert state.cursor() == 0
    state.apply(Settled([0, 1]), 0)
    assert state.cursor() == 100_000


def test_an_entry_that_was_never_stored_costs_no_message() -> None:
    state = leased(10)
    state.apply(Advanced(15, 20, 20, [15, 5], 1_000, 0), 0)
    assert state.take_ready(0, 99) == [10, 11, 12, 13, 14]


@patch("tms.queues.partition.RUNS_MAX", 1)
def test_of_a_snapshot_that_was_cut_nothing_is_used() -> None:
    state, other = leased(30), leased(20)
    state.apply(Rejected([3, 1], "bad"), 0)
    chunks = [*state.snapshot(0, 0)]
    assert len(chunks) == 3 and chunks[1].causes == {3: "bad"}
    for chunk in (chunks[0], chunks[2], chunks[0], chunks[1]):
        other.apply(chunk, 0)
    assert len(other.out) == 20
    other.apply(chunks[2], 0)
    assert other.out.pop(3) and state.out.pop(3) and other.out == state.out
    assert other.causes == {3: "bad"} and list(other.dying) == [3]


def test_a_lease_has_after_a_start_what_was_left_of_it() -> None:
    state = QueuePartitionState()
    state.apply(Advanced(0, 1, 1, [0, 1], 10_000, 0), 500, passed_ms=4_000)
    assert not state.expire(6_400, 0) and state.expire(6_600, 0)
    assert state.take_ready(6_600, 9) == [0]


def test_a_lease_of_a_millisecond_is_not_over_when_it_begins() -> None:
    state = QueuePartitionState()
    state.apply(Advanced(0, 1, 1, [0, 1], 1, 0), 1_000)
    assert not state.expire(1_000, 0) and state.expire(1_100, 0)


def test_no_more_go_to_the_dead_letters_at_once_than_are_asked_for() -> None:
    state = leased(5)
    state.apply(Rejected([0, 3], "bad"), 0)
    assert (state.take_dying(2), state.take_dying(2), state.take_dying(2)) == ([0, 1], [2], [])


def test_the_back_off_doubles_to_its_limit_and_has_jitter() -> None:
    settings = QueueSettings(backoff_first_s=1, backoff_max_s=10, jitter=0)
    delays = [backoff_ms(settings, number, Random(1)) for number in (1, 2, 3, 4, 5, 1_000)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    random, settings = Random(1), QueueSettings(jitter=0.2)
    spread = {backoff_ms(settings, 1, random) for _ in range(100)}
    assert len(spread) > 50 and min(spread) >= 800 and max(spread) <= 1_200


def test_a_token_of_another_life_of_the_queue_is_late() -> None:
    queue = QueueState(Declared(QueueSettings(), EPOCH, 1, 0))
    queue.partitions[0].apply(Advanced(0, 3, 3, [0, 3], 1_000, 0), 0)
    decision = queue.settle([Token(0, 0, 1, EPOCH + 1), Token(1, 0, 1, EPOCH), Token(0, 9, 1, 7)])
    assert (decision.edits, decision.done, len(decision.late)) == ([], 0, 3)
    decision = queue.settle([Token(0, 1, 1, EPOCH), Token(0, 0, 1, EPOCH, 2)])
    assert (decision.edits, decision.done) == ([(0, Settled([0, 2]))], 2)


def test_deadlines_are_late_by_a_bucket_at_most_and_never_early() -> None:
    deadlines = Deadlines()
    deadlines.add(1_050, [1], 1)
    deadlines.add(1_000, [2, 3], 2)
    assert deadlines.next_ms == 1_100 and deadlines.take(1_099, 9) == array("q")
    assert deadlines.take(1_100, 2) == array("q", [2, 3]) and deadlines.take(1_100, 2) == array(
        "q", [1]
    )
    assert deadlines.next_ms is None and deadlines.size == 0


def test_runs_are_flat_and_give_their_offsets_back() -> None:
    runs = runs_of([1, 2, 3, 7, 9, 10])
    assert runs == [1, 3, 7, 1, 9, 2]
    assert [*offsets_in(runs)] == [1, 2, 3, 7, 9, 10]
    add_range(runs, 11, 0)
    add_range(runs, 11, 4)
    assert runs[-2:] == [9, 6]


def test_an_order_takes_no_space_for_what_is_settled() -> None:
    order = KeyOrder()
    order.add_all((offset, 1 + offset % 7) for offset in range(1_000))
    assert [order.hash_of(offset) for offset in (0, 8, 999, 1_000)] == [1, 2, 6, NO_KEY]
    for offset in sorted(range(1_000), key=lambda one: one * 7 % 1_000):
        order.remove(offset)
        assert order.hash_of(offset) == NO_KEY and order.remove(offset) is None
    assert not order._hashes._arrays and not order._heads and not order._behind


def test_a_key_is_known_by_eight_bytes_that_are_not_those_of_no_key() -> None:
    assert list(unpack(pack([NO_KEY, 7, (1 << 60) - 1]))) == [NO_KEY, 7, (1 << 60) - 1]
    assert key_hash(None) == NO_KEY != key_hash(b"")
    assert key_hash(b"a") == key_hash(b"a") != key_hash(b"b") and key_hash(b"a") < 1 << 60


@pytest.mark.parametrize(
    "edit",
    [
        Advanced(0, 9, 1 << 50, [0, 3], 1_000, 5, [4, 1], b"x" * 32),
        PartitionSnapshot(0, 2, 9, 5, 6, [1, 2], [1 << 40], b"", {1: "no"}, [(1 << 60, 1, 2)]),
        PartitionSnapshot(0, 1, 9, 5, 6, [1, 2], [1 << 40], releases=[3]),
        Released([1, 2], [1 << 20]),
    ],
)
def test_an_entry_is_read_as_it_was_written(edit: PartitionEdit) -> None:
    assert decode_edit(b"", encode(edit)) == edit


def test_keys_and_queues_are_read_as_they_were_written() -> None:
    declared = Declared(QueueSettings(lease_s=5, dead_letter="x:y"), 1 << 31, 3, 4, [(0, 1, 2)])
    assert decode_queue(b"", encode(declared)) == declared
    for partition in (None, 17):
        key = queue_key("a group", JOBS, partition)
        assert decode_key(key) == ("a group", JOBS, partition)


@pytest.mark.parametrize("bad", [b"", b"\xc1", encode(["?", 1]), encode({"a": 1})])
def test_an_entry_that_is_none_is_named(bad: bytes) -> None:
    decoders: list[Any] = [decode_edit, decode_queue]
    for decoder in decoders:
        with pytest.raises(DataCorrupt, match=r"g/t/0.*fsck"):
            decoder(b"g/t/0", bad)
    with pytest.raises(DataCorrupt):
        decode_key(b"no/topic/at/all")


def test_an_entry_that_repeats_another_in_part_adds_what_is_new_in_it() -> None:
    state = QueuePartitionState()
    state.apply(Advanced(0, 1, 5, [0, 1], 1_000, 0), 0)
    state.apply(Advanced(0, 3, 7, [0, 3], 1_000, 0), 1)
    assert (state.frontier, sorted(state.out)) == (3, [0, 1, 2])


def test_where_the_log_ends_earlier_the_queue_goes_back() -> None:
    state = QueuePartitionState()
    state.apply(Advanced(0, 6, 7, [0, 6], 1_000, 0), 0)
    state.apply(Settled([0, 4]), 0)
    state.apply(Rewound(3, 2), 0)
    assert (state.frontier, state.at, state.cursor(), state.out) == (3, 2, 3, {})
    state.apply(Rewound(5, 9), 0)
    assert (state.frontier, state.at) == (3, 2), "it never goes on by that"


def test_tokens_are_parsed_and_their_messages_counted() -> None:
    token = Token(0, 1, 1, EPOCH, 50_000)
    assert parse_tokens([str(token), str(token)]) == [token, token]
    for more in ([str(token)] * 2 + [str(Token(0, 1, 1, EPOCH))], ["0.1.1.1"] * (TOKENS_MAX + 1)):
        with pytest.raises(TooLarge, match="at most 100000 messages, not 100001"):
            parse_tokens(more)
    for wrong in ([], ["1.2.3"], str(token)):
        with pytest.raises(Invalid):
            parse_tokens(wrong)
