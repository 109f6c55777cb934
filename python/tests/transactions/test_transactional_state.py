"""The rules of transactional ids: epochs only grow, and one producer of an id at a time decides."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tms.errors import DataCorrupt, Overloaded, TooLarge
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange, PositionKey
from tms.transactions import transactional_state as rules
from tms.transactions.transactional_state import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    RefusalCode,
    Refused,
    TransactionalRecord,
    TransactionalState,
    TransactionPhase,
    decode_record,
    encode_record,
    initialised,
)

TOPIC, OTHER = TopicName("default", "a"), TopicName("other", "b")
GROUPS = ("g", "h")
IDS = ("one", "two", "three")


def change(group: str, partition: int, offset: int, metadata: str = "") -> PositionChange:
    key = PositionKey(group, TOPIC, partition)
    return PositionChange(key, Position.offset(offset), metadata=metadata, leader_epoch=4)


def record(
    epoch: int = 0, phase: TransactionPhase = TransactionPhase.EMPTY, transaction: int = 0
) -> TransactionalRecord:
    return TransactionalRecord(ProducerEpoch(7, epoch), NO_PRODUCER, 60_000, 5, phase, transaction)


class Ids(RuleBasedStateMachine):
    """Producers of three ids: those that have been given a number and an epoch, the present ones
    and earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.state = TransactionalState()
        self.given: dict[str, list[ProducerEpoch]] = {id: [] for id in IDS}
        self.model: dict[str, dict[tuple[str, int], int]] = {}  # offsets by id, group, partition
        self.numbers = 100
        self.transactions = 0
        self.now_ms = 1_000

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def apply(self, id: str, after: TransactionalRecord | None) -> None:
        raw = None if after is None else encode_record(after)
        assert decode_record(id.encode(), raw) == (id, after)
        self.now_ms += 1
        self.state.apply(id, after)

    @rule(id=st.sampled_from(IDS), named=st.integers(0, 3), exhausted=st.booleans())
    def initialise(self, id: str, named: int, exhausted: bool) -> None:
        before, given = self.state.records.get(id), self.given[id]
        if exhausted and before is not None and before.phase is TransactionPhase.EMPTY:
            number = before.producer.number
            before = rules.TransactionalRecord(
                ProducerEpoch(number, EPOCH_MAX), NO_PRODUCER, 1_000, self.now_ms
            )
            self.apply(id, before)
            given.append(before.producer)
        expected = given[-min(named, len(given))] if named and given else None
        try:
            after = initialised(before, expected, 2_000, self.now_ms, self.new_number)
        except Refused as error:
            assert error.code is RefusalCode.PRODUCER_FENCED
            assert before is not None and expected not in (before.producer, before.previous)
            return
        if after is before:
            assert expected == before.previous
            return
        assert after.producer not in given
        assert before is None or expected in (None, before.producer)
        assert (after.transaction, after.positions) == (
            0 if before is None else before.transaction,
            (),
        )
        given.append(after.producer)
        self.model[id] = {}
        self.apply(id, after)

    @rule(id=st.sampled_from(IDS), late=st.integers(1, 3), partition=st.integers(0, 2))
    def add(self, id: str, late: int, partition: int) -> None:
        before = self.found(id, late)
        if before is None or before.phase is TransactionPhase.PREPARE_ABORT:
            return
        if before.phase is not TransactionPhase.ONGOING:
            self.transactions += 1
            before = before.began(self.transactions, self.now_ms)
        after = before.with_partitions([(TOPIC, partition), (OTHER, 1)], self.now_ms)
        assert after.has(TOPIC, partition) and after.has(OTHER, 1) and not after.has(OTHER, 7)
        assert after.with_partitions([(OTHER, 1)], self.now_ms) is after
        after = after.with_group(GROUPS[partition % 2], self.now_ms)
        if after is not self.state.records[id]:
            self.apply(id, after)

    @rule(
        id=st.sampled_from(IDS),
        late=st.integers(1, 3),
        group=st.sampled_from(GROUPS),
        partition=st.integers(0, 2),
        offset=st.integers(0, 9),
    )
    def move(self, id: str, late: int, group: str, partition: int, offset: int) -> None:
        before = self.found(id, late)
        if before is None:
            return
        try:
            moved = [change(group, partition, offset + 1), change(group, partition, offset)]
            after = before.with_positions(group, moved, self.now_ms)
        except Refused:
            assert before.phase is not TransactionPhase.ONGOING or group not in before.groups
            return
        self.model[id][group, partition] = offset
        self.apply(id, after)

    @rule(id=st.sampled_from(IDS), late=st.integers(1, 3), committed=st.booleans())
    def end(self, id: str, late: int, committed: bool) -> None:
        before = self.found(id, late)
        if before is None:
            return
        try:
            if not before.require_end(committed):
                assert before.transaction == 0
                return
        except Refused:
            assert before.phase is not TransactionPhase.ONGOING
            return
        self.model[id] = {}
        after = before if committed else before.aborting(self.now_ms)
        if not committed:
            self.apply(id, after)
        self.apply(id, after.ended(committed, self.now_ms))

    @rule(id=st.sampled_from(IDS))
    def time_out(self, id: str) -> None:
        before = self.state.records.get(id)
        if before is not None and before.phase is TransactionPhase.ONGOING:
            after = before.fenced(self.now_ms)
            self.model[id] = {}
            self.given[id].append(after.producer)  # which no client has
            self.apply(id, after)

    @rule(id=st.sampled_from(IDS))
    def forget(self, id: str) -> None:
        if id in self.state.records:
            self.apply(id, None)
            self.given[id], self.model[id] = [], {}

    def found(self, id: str, late: int) -> TransactionalRecord | None:
        """The record, for its present producer; an earlier one is refused."""
        given = self.given[id]
        if not given:
            return None
        producer = given[-min(late, len(given))]
        try:
            found = self.state.find(id, producer)
        except Refused:
            assert producer != given[-1]
            return None
        assert producer == given[-1]
        return found

    @invariant()
    def indexes_follow_from_the_records(self) -> None:
        state = self.state
        assert state.bytes == sum(len(encode_record(one)) for one in state.records.values())
        for id, one in state.records.items():
            assert state.of_number(one.producer.number) is one
            moved = {(p.group, p.partition): Position.parse(p.position) for p in one.positions}
            wanted = {key: Position.offset(at) for key, at in self.model.get(id, {}).items()}
            assert moved == wanted
            assert (one.transaction != 0) == (
                one.phase in (TransactionPhase.ONGOING, TransactionPhase.PREPARE_ABORT)
            )
            if one.phase is not TransactionPhase.ONGOING:
                assert not (one.partitions or one.groups or one.positions)
        assert state.open == {id for id, one in state.records.items() if one.transaction}
        used = [one.used_ms for one in state.records.values()]
        assert used == sorted(used)
        for group in GROUPS:
            moving = [
                one
                for one in state.records.values()
                if any(p.group == group for p in one.positions)
            ]
            assert sorted(map(id_of, state.moving(group))) == sorted(map(id_of, moving))


def id_of(one: TransactionalRecord) -> ProducerEpoch:
    return one.producer


TestIds = Ids.TestCase


def test_an_entry_that_cannot_be_read_is_named() -> None:
    for id, raw in ((b"\xff", None), (b"id", b"\xc1"), (b"id", b"\x93\x01\x02\x03")):
        with pytest.raises(DataCorrupt, match="tms fsck"):
            decode_record(id, raw)


def test_an_entry_of_a_later_release_is_read() -> None:
    raw = bytearray(encode_record(record()))
    raw[0] += 1  # an array with one more element
    assert decode_record(b"id", bytes(raw) + b"\xa3new") == ("id", record())


def test_a_position_keeps_all_that_its_commit_needs() -> None:
    given = change("g", 3, 9, metadata="m")
    began = record().began(5, 0).with_group("g", 0).with_positions("g", [given], 0)
    _, again = decode_record(b"id", encode_record(began))
    assert again is not None
    assert [one.change for one in again.positions] == [given]


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = TransactionalState()
    state.apply("one", record())
    size = len(encode_record(record()))
    monkeypatch.setattr(rules, "RECORDS_MAX", 1)
    state.require_room("one", record(1))
    with pytest.raises(Overloaded, match="7 days"):
        state.require_room("two", record())
    monkeypatch.setattr(rules, "RECORDS_MAX", 2)
    monkeypatch.setattr(rules, "BYTES_MAX", 2 * size)
    state.require_room("two", record())
    larger = record().began(5, 0).with_partitions([(TOPIC, 1)], 0)
    state.apply("two", record())
    with pytest.raises(Overloaded):
        state.require_room("one", larger)
    state.require_room("one", record(1))
    monkeypatch.setattr(rules, "RECORD_BYTES_MAX", size)
    with pytest.raises(TooLarge, match="more partitions"):
        state.require_room("one", larger)


@pytest.mark.parametrize(
    ("phase", "committed", "code"),
    [
        (TransactionPhase.EMPTY, True, RefusalCode.INVALID_TXN_STATE),
        (TransactionPhase.EMPTY, False, RefusalCode.INVALID_TXN_STATE),
        (TransactionPhase.COMPLETE_ABORT, True, RefusalCode.INVALID_TXN_STATE),
        (TransactionPhase.COMPLETE_COMMIT, False, RefusalCode.INVALID_TXN_STATE),
        (TransactionPhase.PREPARE_ABORT, True, RefusalCode.INVALID_TXN_STATE),
        (TransactionPhase.PREPARE_ABORT, False, RefusalCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_an_end_is_refused_in_a_phase_that_contradicts_it(
    phase: TransactionPhase, committed: bool, code: RefusalCode
) -> None:
    with pytest.raises(Refused) as error:
        record(phase=phase).require_end(committed)
    assert error.value.code is code
