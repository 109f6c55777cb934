"""The contract of transactions through a bus, whatever is below it."""

import threading

import pytest

from tests.waiting import PATIENCE_S
from tms import Bus
from tms.block import encode
from tms.errors import (
    Closed,
    Conflict,
    Invalid,
    Malformed,
    PartitionNotFound,
    TooLarge,
    TopicNotFound,
    TransactionConflict,
    TransactionNotFound,
)
from tms.model.message import NewBlock
from tms.model.snapshot import Snapshot, encode_snapshot
from tms.model.topic import TopicName
from tms.model.transaction import Commit, TopicBlock, TopicStaged


def values(bus: Bus, topic: str, **more: object) -> list[bytes | None]:
    found = bus.consumer(topic, stop_at_end=True, **more)  # type: ignore[arg-type]
    return [message.value for message in found]


class TransactionContract:
    """Contract of transactions and positions."""

    @pytest.fixture(autouse=True)
    def topics(self, bus: Bus) -> None:
        bus.create_topic("in", durability="written")
        bus.create_topic("out", partitions=3, durability="written")

    def test_messages_of_a_transaction_appear_together_at_its_end(self, bus: Bus) -> None:
        with bus.transaction() as tx:
            tx.send("in", b"1")
            tx.send("out", b"2", key=b"k", headers={"h": b"x"})
            tx.send("in", b"3")
            assert values(bus, "in") == values(bus, "out") == []
        assert values(bus, "in") == [b"1", b"3"]
        (message,) = bus.consumer("out", stop_at_end=True)
        assert (message.key, message.value, message.headers) == (b"k", b"2", {"h": b"x"})

    def test_commit_gives_the_ids_in_the_order_of_sending(self, bus: Bus) -> None:
        tx = bus.transaction()
        for number in range(50):
            tx.send("out", b"%d" % number, partition=number % 3)
        ids = tx.commit()
        found = {message.id: message.value for message in bus.consumer("out", stop_at_end=True)}
        by_place = {
            (message.partition, message.id): message.value
            for message in bus.consumer("out", stop_at_end=True)
        }
        assert len(found) <= 50 == len(by_place)
        for number, id in enumerate(ids):
            assert by_place[number % 3, id] == b"%d" % number
        with pytest.raises(Closed):
            tx.send("in", b"late")

    def test_an_exception_leaves_nothing(self, bus: Bus) -> None:
        with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
            tx.send("in", b"1")
            assert tx.id
            _ = 1 / 0
        assert values(bus, "in", isolation="uncommitted") == []
        assert bus._transport.transactions.open() == []

    def test_what_is_wrong_is_refused_at_once(self, bus: Bus) -> None:
        tx = bus.transaction()
        with pytest.raises(TopicNotFound):
            tx.send("nowhere", b"1")
        with pytest.raises(PartitionNotFound):
            tx.send("out", b"1", partition=3)
        with pytest.raises(Invalid):
            tx.send("out", "text")  # type: ignore[arg-type]
        with pytest.raises(TooLarge):
            tx.send("out", bytes(9 << 20))
        tx.abort()
        assert values(bus, "out") == []

    def test_what_is_too_much_for_one_request_is_staged_and_seen_all_at_once(
        self, bus: Bus
    ) -> None:
        sent = [b"%d" % number + bytes(1 << 20) for number in range(36)]
        with bus.transaction() as tx:
            for number, value in enumerate(sent):
                tx.send("out", value, key=b"k", headers={"n": b"%d" % number}, partition=0)
                if number == 20:
                    tx.send_many("in", [b"a", b"b"])
            bus.publish("out", b"plain", partition=0)
            assert values(bus, "out", isolation="uncommitted") == [b"plain"]
            ids = tx.commit()
        found = [m for m in bus.consumer("out", stop_at_end=True) if m.partition == 0]
        assert [m.value for m in found] == [b"plain", *sent]
        assert [m.headers for m in found[1:]] == [{"n": b"%d" % n} for n in range(36)]
        assert {m.key for m in found[1:]} == {b"k"}
        assert [m.offset for m in found] == list(range(37))
        assert [m.id for m in found[1:]] == [id for n, id in enumerate(ids) if n not in (21, 22)]
        assert values(bus, "in") == [b"a", b"b"]

    def test_a_reader_may_pass_the_snapshot_of_a_transaction_elsewhere(self, bus: Bus) -> None:
        bus.publish("in", b"plain")
        with bus.transaction() as tx:
            tx.send("in", b"committed")
            id = tx.id
        bus.publish("in", b"behind")
        for snapshot, shown in (
            (Snapshot(1, id, (), ()), [b"plain", b"committed", b"behind"]),
            (Snapshot(1, id - 1, (), ()), [b"plain"]),
            (Snapshot(1, id, (), (id,)), [b"plain"]),
            (Snapshot(1, id, (id,), ()), [b"plain", b"behind"]),
        ):
            seen = bus.consumer("in", isolation=encode_snapshot(snapshot), stop_at_end=True)
            assert [message.value for message in seen] == shown
        with pytest.raises(Malformed):
            bus.consumer("in", isolation=b"no snapshot")
        with pytest.raises(Invalid):
            bus.consumer("in", isolation="snapshot")

    def test_what_was_staged_is_gone_after_an_abort(self, bus: Bus) -> None:
        tx = bus.transaction()
        for _ in range(20):
            tx.send("out", bytes(1 << 20))
        id = tx.id
        tx.abort()
        assert values(bus, "out", isolation="uncommitted") == []
        assert bus._transport.transactions.describe(id).outcome == "aborted"

    def test_a_hundred_thousand_messages_are_one_transaction(self, bus: Bus) -> None:
        with bus.transaction() as tx:
            for number in range(100_000):
                tx.send("out", b"%d" % number, partition=0)
        assert values(bus, "out") == [b"%d" % number for number in range(100_000)]

    def test_many_messages_are_added_at_once(self, bus: Bus) -> None:
        sent = [b"%d" % number for number in range(9_999)]
        tx = bus.transaction()
        tx.send("in", b"first")
        tx.send_many("in", sent)
        tx.send_many("out", [None, b""], partition=2)
        for wrong in (["text"], [bytes(9 << 20)]):
            with pytest.raises((Invalid, TooLarge)):
                tx.send_many("in", wrong)  # type: ignore[arg-type]
        ids = tx.commit()
        assert len(set(ids)) <= len(ids) == 10_002
        assert values(bus, "in") == [b"first", *sent]
        assert values(bus, "out") == [None, b""]

    def test_an_empty_transaction_does_nothing(self, bus: Bus) -> None:
        with bus.transaction() as tx:
            pass
        assert tx.commit.__name__ == "commit"
        assert bus._transport.transactions.open() == []

    def test_of_two_that_change_the_same_key_one_commits(self, bus: Bus) -> None:
        one, other = bus.transaction(), bus.transaction()
        for tx in (one, other):
            tx.change(b"row 1")
        one.send("in", b"one")
        other.send("in", b"other")
        one.commit()
        with pytest.raises(TransactionConflict) as caught:
            other.commit()
        assert caught.value.details["key"] == b"row 1".hex()
        assert values(bus, "in") == [b"one"]

    def test_a_commit_may_be_repeated(self, bus: Bus) -> None:
        block = TopicBlock(TopicName.parse("in"), NewBlock(0, encode([b"1"])))
        request = Commit(token="once", blocks=(block,))
        first, again = (bus._transport.transactions.commit(request) for _ in range(2))
        assert first == again
        assert values(bus, "in") == [b"1"]
        with pytest.raises(TransactionNotFound):
            bus._transport.transactions.commit(Commit(77, blocks=(block,)))
        assert bus._transport.transactions.describe(first.transaction_id).outcome == "committed"

    def test_a_waiting_consumer_sees_a_transaction_whole(self, bus: Bus) -> None:
        seen: list[bytes | None] = []
        with bus.consumer("in", wait_s=10) as consumer:
            thread = threading.Thread(
                target=lambda: seen.extend(next(iter(consumer.batches())).values())
            )
            thread.start()
            with bus.transaction() as tx:
                for value in (b"1", b"2", b"3"):
                    tx.send("in", value)
            thread.join(PATIENCE_S)
        assert seen == [b"1", b"2", b"3"]

    # Positions

    def test_a_group_goes_on_where_it_stands(self, bus: Bus) -> None:
        for number in range(6):
            bus.publish("in", b"%d" % number)
        consumer = bus.consumer("in", group="g", stop_at_end=True)
        for message in consumer:
            if message.value == b"2":
                consumer.ack()
                break
        assert values(bus, "in", group="g") == [b"3", b"4", b"5"]
        assert values(bus, "in", group="other")[0] == b"0"
        bus.set_positions("in", {0: "offset:5"}, group="g")
        assert values(bus, "in", group="g") == [b"5"]
        assert str(bus.positions("in", group="g")[0]) == "offset:5"

    def test_consume_transform_produce_moves_all_or_nothing(self, bus: Bus) -> None:
        for number in range(10):
            bus.publish("in", b"%d" % number)

        def work(fail_at: int) -> None:
            consumer = bus.consumer("in", group="g", stop_at_end=True)
            for message in consumer:
                with bus.transaction() as tx:
                    assert message.value is not None
                    tx.send("out", message.value * 2, partition=0)
                    tx.ack(consumer)
                    if int(message.value) == fail_at:
                        raise RuntimeError("crash")

        with pytest.raises(RuntimeError):
            work(fail_at=4)
        work(fail_at=-1)
        assert values(bus, "out") == [b"%d%d" % (n, n) for n in range(10)]

    def test_of_two_consumers_at_the_same_place_one_gets_through(self, bus: Bus) -> None:
        bus.publish("in", b"1")
        both = [bus.consumer("in", group="g", stop_at_end=True) for _ in range(2)]
        results = []
        for consumer in both:
            list(consumer)
            tx = bus.transaction()
            tx.send("out", b"done", partition=0)
            tx.ack(consumer)
            results.append(tx)
        results[0].commit()
        with pytest.raises(Conflict):
            results[1].commit()
        assert values(bus, "out") == [b"done"]
        with pytest.raises(Conflict):
            both[1].ack()

    def test_a_consumer_without_group_cannot_acknowledge(self, bus: Bus) -> None:
        consumer = bus.consumer("in")
        with pytest.raises(Invalid, match="group"):
            consumer.ack()
        with pytest.raises(Invalid, match="group"):
            bus.transaction().ack(consumer)
        for group in ("", "a/b", "g" * 256):
            with pytest.raises(Invalid):
                bus.positions("in", group=group)

    # Blocks staged by several producers

    def stage(self, bus: Bus, id: int, producer: int, *values: bytes, partition: int = 0) -> None:
        """Stage one block for each value, all of them sent twice: no answer is sure to arrive."""
        port = bus._transport.transactions
        for sequence, value in enumerate(values):
            block = encode([value], producer_id=producer, producer_sequence=sequence)
            for _ in range(2):
                port.stage(TopicName.parse("out"), [NewBlock(partition, bytes(block))], id)

    def test_only_what_the_named_producers_staged_appears(self, bus: Bus) -> None:
        port, out = bus._transport.transactions, TopicName.parse("out")
        id = port.begin(token="batch").transaction_id
        assert port.begin(token="batch").transaction_id == id
        self.stage(bus, id, 7, b"7.0", b"7.1")
        self.stage(bus, id, 8, b"8.0")
        self.stage(bus, id, 2**64 - 1, b"9.0")
        self.stage(bus, id, 7, b"lost", partition=1)
        self.stage(bus, id, 7, b"7.0", b"7.1", b"7.2")  # the first two are there
        request = Commit(id, staged=(TopicStaged(out, 0, 4, (7, 2**64 - 1)),))
        assert port.commit(request) == port.commit(request)
        bus.publish("out", b"behind", partition=0)
        found = list(bus.consumer("out", stop_at_end=True))
        assert [m.value for m in found] == [b"7.0", b"7.1", b"9.0", b"7.2", b"behind"]
        assert [m.offset for m in found] == list(range(5))
        assert {m.partition for m in found} == {0}

    def test_a_commit_whose_producers_staged_another_number_of_blocks_is_refused(
        self, bus: Bus
    ) -> None:
        port, out = bus._transport.transactions, TopicName.parse("out")
        for blocks, producers in ((1, (7,)), (3, (7,)), (2, (8,)), (4, (7, 8)), (2, ())):
            id = port.begin().transaction_id
            self.stage(bus, id, 7, b"7.0", b"7.1")
            self.stage(bus, id, 8, b"8.0")
            with pytest.raises(Conflict, match="its commit names"):
                port.commit(Commit(id, staged=(TopicStaged(out, 0, blocks, producers),)))
            assert port.describe(id).outcome == "invalid"
        assert values(bus, "out", isolation="uncommitted") in ([], [b"7.0"])
