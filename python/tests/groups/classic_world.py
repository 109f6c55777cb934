"""An engine with a group of Kafka's clients, over a store that fails, is slow, and survives the
engine."""

from random import Random

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.gate_kit import StoreGate
from tms.engine.engine import Engine
from tms.groups.classic_calls import (
    Answered,
    ClassicKey,
    Client,
    Code,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Sender,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_shard import ClassicShard
from tms.model.group import GroupKind
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Owner, PositionChange, PositionKey
from tms.store.base import Store
from tms.store.memory import MemoryStore

A, B = TopicName("default", "a"), TopicName("default", "b")
OTHER = TopicName("other", "a")
KEY = ClassicKey("default", "g")


class World:
    """An engine over a store with a gate."""

    def __init__(self, shared: bool = False) -> None:
        self.clock, self.gate, self._random = ManualClock(), StoreGate(), Random(1)
        self.open(MemoryStore(shared=shared))
        for name in (A, B, OTHER):
            self.engine.create_topic(name, TopicSettings(2, durability=Durability.WRITTEN))

    def open(self, store: Store) -> None:
        self.store = FaultyStore(store, before=self.gate)
        self.engine = Engine(self.store, self.clock, random=self._random)

    def restart(self, lose: bool = False) -> None:
        """Restart as after a crash of the process, or a power loss."""
        self.engine._threads.shutdown()
        self.clock.pass_ms(1)
        self.open(self.store.crash(Random(1)) if lose else self.store.inner)

    @property
    def classic(self) -> ClassicShard:
        return self.engine.groups.of("g").classic

    @property
    def kind(self) -> GroupKind | None:
        return self.engine.groups.of("g").kind(KEY)

    def poll(self, topic: TopicName = A) -> None:
        self.engine.groups.poll(topic, "g", "m")

    def join(
        self,
        token: str = "join",
        member: str = "",
        key: ClassicKey = KEY,
        instance: str | None = None,
        metadata: bytes = b"",
    ) -> list[Answered]:
        request = JoinRequest(
            version=0,
            client=Client("c", "h"),
            protocol_type="consumer",
            protocols=(("range", metadata),),
            session_ms=10_000,
            rebalance_ms=10_000,
            member=member,
            instance=instance,
        )
        return self.classic.join(token, key, request)

    def sync(self, member: str, generation: int = 1, key: ClassicKey = KEY) -> list[Answered]:
        """Sync as the leader of a group of one member; what has to be stored is not yet."""
        with self.classic.locked() as (groups, now_ms):
            request = SyncRequest(Sender(member, generation), {member: b"all"})
            return groups.sync(now_ms, "sync", key, request)

    def beat(self, member: str, generation: int = 1, instance: str | None = None) -> Code:
        with self.classic.locked() as (groups, now_ms):
            return groups.heartbeat(now_ms, KEY, Sender(member, generation, instance))

    def expire(self) -> list[Answered]:
        with self.classic.locked() as (groups, now_ms):
            return groups.expire(now_ms)

    def stable(self, instance: str | None = None, metadata: bytes = b"") -> str:
        """A Kafka group of one member, in generation 1; returns the member's id."""
        assert self.join(instance=instance, metadata=metadata) == []
        self.clock.pass_ms(3_000)
        ((token, answer),) = self.expire()
        assert token == "join" and isinstance(answer, JoinAnswer)
        assert self.sync(answer.member) == []
        assert self.classic.save() == [("sync", SyncAnswer(Code.NONE, "consumer", "range", b"all"))]
        return answer.member

    def leave(self, member: str) -> None:
        with self.classic.locked() as (groups, now_ms):
            groups.leave(now_ms, KEY, [Leaver(member)])

    def commit(self, to: int, member: str, generation: int) -> None:
        """Commit as a Kafka member of a generation."""
        key = PositionKey("g", A, 0)
        owner = Owner(member, generation)
        self.engine.groups.move([PositionChange(key, Position.offset(to), None, owner)])

    def position(self) -> str:
        return str(self.engine.groups.positions(A, "g").get(0, ""))
