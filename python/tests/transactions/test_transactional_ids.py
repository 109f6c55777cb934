"""Transactional ids on an engine: writes that fail, callers at once, and time."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.gate_kit import in_thread
from tests.transactions.test_transactions_repeated import TOPIC, World
from tests.waiting import PATIENCE_S
from tms.block import count_messages, encode
from tms.errors import StorageUnavailable, TransactionNotFound
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.transaction import Commit, PositionChange, PositionKey
from tms.topics.sharding import POSITIONS, PRODUCERS, TRANSACTIONS
from tms.transactions import transactional_ids
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactional_state import (
    ProducerEpoch,
    RefusalCode,
    Refused,
    TransactionPhase,
)

ID, GROUP = "id", "group"


class Client:
    """The producer of an id."""

    def __init__(self, world: World, id: str = ID) -> None:
        self.world = world
        self.id = id
        self.sequence = 0
        self.producer = self.ids.initialise(id, 60_000)

    @property
    def ids(self) -> TransactionalIds:
        return self.world.engine.transactional_ids

    def publish(self, value: bytes) -> None:
        """Store the next message."""
        number, epoch = self.producer
        block = encode([value])
        count_messages(block, number, epoch, self.sequence)
        new = [NewBlock(0, block)]
        self.ids.publish(self.id, self.producer, TOPIC, new).result(PATIENCE_S)
        self.sequence += 1

    def begin(self, value: bytes = b"1", offset: int = 5) -> None:
        """Begin a transaction with a message and a position."""
        self.ids.add_partitions(self.id, self.producer, [(TOPIC, 0)])
        self.ids.add_group(self.id, self.producer, GROUP)
        self.publish(value)
        self.move(offset)

    def move(self, offset: int) -> None:
        """Move the position of the group."""
        change = PositionChange(PositionKey(GROUP, TOPIC, 0), Position.offset(offset))
        self.ids.add_positions(self.id, self.producer, GROUP, [change])

    def end(self, committed: bool = True) -> None:
        self.ids.end(self.id, self.producer, committed)

    @property
    def position(self) -> str:
        """The position of the group."""
        positions = self.world.engine.groups.positions(TOPIC, GROUP)
        return str(positions.get(0, ""))


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.fixture(params=[False, True], ids=["lost", "stored"])
def stored(request: pytest.FixtureRequest) -> bool:
    """True if the failed write is stored all the same."""
    return bool(request.param)


def heal(world: World) -> None:
    """End all faults, and let the partitions recover."""
    world.store.heal()
    world.engine.maintenance.recover()


def code_of(work: Callable[[], object]) -> RefusalCode:
    with pytest.raises(Refused) as error:
        work()
    return error.value.code


def test_a_change_whose_write_failed_may_be_repeated(world: World, stored: bool) -> None:
    client = Client(world)
    client.begin()
    steps: list[Callable[[], object]] = [
        lambda: client.ids.add_partitions(ID, client.producer, [(TOPIC, 1)]),
        lambda: client.ids.add_group(ID, client.producer, "other"),
        lambda: client.move(9),
        lambda: client.end(committed=False),
        lambda: client.begin(b"2"),
    ]
    for step in steps:
        world.store.fail_write(1, stored=stored, prefix=world.segments(PRODUCERS))
        with pytest.raises(StorageUnavailable):
            step()
        heal(world)
        step()
    client.end()
    assert (world.read(), client.position) == ([b"2"], "offset:5")


def test_an_initialisation_whose_write_failed_fences_the_producer_before(
    world: World, stored: bool
) -> None:
    client = Client(world)
    client.begin()
    world.store.fail_write(1, stored=stored, prefix=world.segments(PRODUCERS))
    with pytest.raises(StorageUnavailable):
        client.ids.initialise(ID, 60_000)
    heal(world)
    number, epoch = client.ids.initialise(ID, 60_000)
    assert (number, epoch) == (client.producer.number, 2 if stored else 1)
    assert code_of(client.end) is RefusalCode.PRODUCER_FENCED
    assert (world.read(), client.position) == ([], "")


def test_an_id_belongs_to_the_principal_that_began_with_it(world: World) -> None:
    ids = world.engine.transactional_ids
    denied = RefusalCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ids.initialise(ID, 60_000)  # access was not controlled: it belongs to nobody
    assert ids.owner(ID) == ids.owner("unknown") == ""
    before = ids.initialise(ID, 60_000, owner="ann")
    assert code_of(lambda: ids.initialise(ID, 60_000, owner="bob")) is denied
    ids.add_partitions(ID, before, [(TOPIC, 0)])
    assert ids.find(ID).producer == before and ids.find(ID).owner == "ann"
    begun = world.engine.transactions.describe(ids.find(ID).transaction)
    assert begun.client == "ann"  # so it counts against the bounds of its principal
    ids.end(ID, before, committed=True)
    assert ids.owner(ID) == "ann"
    ids.initialise(ID, 60_000)  # access is not controlled any more
    assert ids.owner(ID) == "ann"
    ids.initialise(ID, 60_000, owner="bob", takes_over=True)
    assert ids.owner(ID) == "bob"
    assert code_of(lambda: ids.initialise(ID, 60_000, owner="ann")) is denied


@pytest.mark.parametrize("journal", [TRANSACTIONS, POSITIONS])
def test_a_commit_whose_write_failed_is_whole_or_absent(
    world: World, stored: bool, journal: str
) -> None:
    client = Client(world)
    client.begin()
    client.end()
    client.begin(b"2", 6)
    prefix = world.segments(
        journal, world.engine.topics.shards.of_group(GROUP) if journal is POSITIONS else 0
    )
    world.store.fail_write(1, stored=stored, prefix=prefix)
    with pytest.raises(StorageUnavailable):
        client.end()
    heal(world)
    try:
        client.end()
    except Refused as refused:
        assert refused.code is RefusalCode.PRODUCER_FENCED
        assert (world.read(), client.position) == ([b"1"], "offset:5")
    else:
        assert (world.read(), client.position) == ([b"1", b"2"], "offset:6")
    later = Client(world)
    later.begin(b"3", 7)
    later.end()
    assert (world.read()[-1], client.position) == (b"3", "offset:7")


def test_a_refused_batch_fences_its_producer(world: World, stored: bool) -> None:
    client = Client(world)
    client.begin()
    world.store.fail_write(1, stored=stored, prefix=world.segments())
    with pytest.raises(StorageUnavailable):
        client.publish(b"refused")
    heal(world)
    assert code_of(client.end) is RefusalCode.PRODUCER_FENCED
    assert (world.read(), client.position) == ([], "")


def test_of_two_that_initialise_at_once_one_is_fenced(world: World) -> None:
    Client(world).begin()
    ids = world.engine.transactional_ids
    both: list[Future[ProducerEpoch]] = [
        in_thread(lambda: ids.initialise(ID, 60_000)) for _ in range(2)
    ]
    epochs = sorted(one.result(PATIENCE_S).epoch for one in both)
    assert epochs == [1, 2]
    assert code_of(lambda: ids.end(ID, ProducerEpoch(ids.find(ID).producer.number, 1), True)) is (
        RefusalCode.PRODUCER_FENCED
    )


def test_an_id_that_another_caller_changes_is_refused_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_ids, "TURN_S", 0.01)
    client, other = Client(world), Client(world, "other")
    client.begin()
    with world.gate.holding("write", world.segments(TRANSACTIONS)):
        ending = in_thread(client.end)
        world.gate.wait_reached()
        assert code_of(client.end) is RefusalCode.CONCURRENT_TRANSACTIONS
        assert client.ids.pending(GROUP) == {(TOPIC, 0)}
        assert code_of(lambda: client.ids.initialise(ID, 1)) is RefusalCode.CONCURRENT_TRANSACTIONS
        other.ids.find("other")
    ending.result(PATIENCE_S)
    client.end()
    assert client.ids.pending(GROUP) == set()


def test_while_a_commit_goes_on_that_nobody_waits_for_the_id_stays_as_it_is(world: World) -> None:
    client = Client(world)
    client.begin()
    client.end()
    client.begin(b"2", 6)
    record = client.ids.find(ID)
    changes = tuple(one.change for one in record.positions)
    request = Commit(record.transaction, positions=changes, overtakes=True)
    shard = world.engine.topics.shards.of_group(GROUP)
    with world.gate.holding("write", world.segments(POSITIONS, shard)):
        lingering = in_thread(lambda: world.tx.commit(request))
        world.gate.wait_reached()
        concurrent = RefusalCode.CONCURRENT_TRANSACTIONS
        assert code_of(lambda: client.ids.initialise(ID, 60_000)) is concurrent
        assert code_of(lambda: client.move(8)) is concurrent
        assert code_of(lambda: client.end(committed=False)) is RefusalCode.INVALID_TXN_STATE
        world.engine.transactional_ids.tidy()
        ending = in_thread(client.end)
    lingering.result(PATIENCE_S)
    ending.result(PATIENCE_S)
    assert client.ids.find(ID).phase is TransactionPhase.COMPLETE_COMMIT
    assert (world.read(), client.position) == ([b"1", b"2"], "offset:6")


def test_the_end_of_a_transaction_is_known_longer_than_its_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.transactions.state.ENDED_REMEMBERED", 1)
    client = Client(world)
    client.begin()
    transaction = client.ids.find(ID).transaction
    client.end()
    world.engine._tidy()
    world.clock.pass_ms(3 * 86_400_000)
    for _ in range(3):
        world.tx.commit(Commit(world.tx.begin().transaction_id))
        world.tx.manager.shorten(0)
    world.restart()
    with pytest.raises(TransactionNotFound):
        world.tx.manager.outcome(transaction)
    client.end()
    assert client.ids.find(ID).producer == client.producer


def test_a_power_loss_takes_no_epoch_and_no_position(world: World) -> None:
    client = Client(world)
    client.begin()
    world.tx.manager.confirm()  # syncs the begin, which a power loss might take otherwise
    client.move(9)
    later = Client(world, "later")
    later.producer = later.ids.initialise("later", 60_000)
    world.store.crash()
    world.open()
    assert client.ids.find("later").producer == later.producer
    client.end()
    assert (world.read(), client.position) == ([b"1"], "offset:9")


def test_a_snapshot_shortens_the_journal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_ids, "ENTRIES_MAX", 5)
    client, idle = Client(world), Client(world, "idle")
    for number in range(4):
        client.begin(b"%d" % number, number)
        client.end(committed=number % 2 == 0)
    client.begin(b"open", 9)
    before = client.ids._journal.length
    world.engine._tidy()
    assert client.ids._journal.length < before
    world.restart()
    assert client.ids._journal.length == 0
    client.publish(b"more")
    assert client.ids._journal.length == 2
    client.end()
    assert (world.read(), client.position) == ([b"0", b"2", b"open", b"more"], "offset:9")
    idle.begin(b"idle", 10)
    idle.end()


def test_an_engine_without_transactional_ids_has_no_journal_of_them(world: World) -> None:
    world.engine._tidy()
    assert world.engine.transactional_ids.pending(GROUP) == set()
    names = [name for name, _ in world.engine.topics.registry.all()]
    assert PRODUCERS not in names
