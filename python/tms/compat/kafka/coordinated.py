"""Transactional ids, whichever instance coordinates transactions: questions about them are answered
here, or by that instance.

    a question ─▶ Here: by the engine │ At(peer): `PeersApi.answer_kafka` ─▶ its value, or `Refused`

* A producer that has no transactional id never gets one, so it is asked for once.
* The messages of a transaction go by way of the coordinator, which knows what a transaction has
  stored, to the owner of the partition.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from tms.engine.engine import Engine
from tms.model.message import Appended, NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange
from tms.runtime.decoding import from_msgpack
from tms.server.service import Service
from tms.topics.owners import Here, Peer
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactional_state import (
    PendingPosition,
    ProducerEpoch,
    RefusalCode,
    Refused,
)

ANSWER = "peers.answer_kafka"  # the operation of other instances
REMEMBERED_MAX = 10_000  # producers without a transactional id
PUBLISH_TIMEOUT_S = 30.0
T = TypeVar("T")


class Question(msgspec.Struct, tag=True):
    """A question to the coordinator of transactions."""

    def answer(self, ids: TransactionalIds) -> object:
        """The answer of the coordinator. Raises `Refused`."""
        raise NotImplementedError


class OwnerOf(Question):
    """The principal of a transactional id."""

    id: str

    def answer(self, ids: TransactionalIds) -> str:
        return ids.owner(self.id)


class PublishInTransaction(Question):
    """The places of blocks that a transaction stores in a partition."""

    id: str
    producer: ProducerEpoch
    topic: str
    partition: int
    blocks: tuple[bytes, ...]

    def answer(self, ids: TransactionalIds) -> list[Appended]:
        blocks = [NewBlock(self.partition, bytearray(block)) for block in self.blocks]
        name = TopicName.parse(self.topic)
        return ids.publish(self.id, self.producer, name, blocks).result(PUBLISH_TIMEOUT_S)


class AddPositions(Question):
    """Nothing, once positions of a group are in a transaction."""

    id: str
    producer: ProducerEpoch
    group: str
    positions: tuple[PendingPosition, ...]

    def answer(self, ids: TransactionalIds) -> None:
        ids.add_positions(
            self.id, self.producer, self.group, [one.change for one in self.positions]
        )


class PendingOf(Question):
    """The positions of a group that open transactions will move if they commit."""

    group: str

    def answer(self, ids: TransactionalIds) -> list[tuple[str, int]]:
        return [(str(name), number) for name, number in ids.pending(self.group)]


class TransactionsIn(Question):
    """For each of these producers that has a transactional id the write pointer of its transaction
    in a partition, 0 without one."""

    numbers: tuple[int, ...]
    topic: str
    partition: int

    def answer(self, ids: TransactionalIds) -> dict[int, int]:
        name = TopicName.parse(self.topic)
        return {
            number: ids.transaction_of(number, name, self.partition) or 0
            for number in self.numbers
            if ids.has_number(number)
        }


class _Reply(msgspec.Struct):
    """The answer to a question, or Kafka's number of the reason why it is refused."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    refusal: int = 0


_QUESTIONS: Any = OwnerOf | PublishInTransaction | AddPositions | PendingOf | TransactionsIn


def answer_question(engine: Engine, message: bytes) -> bytes:
    """The reply to a question of another instance, while this one coordinates. Raises `NotOwner`,
    and what was wrong."""
    question: Question = from_msgpack(message, _QUESTIONS)
    engine.confirm_owner()
    try:
        value = question.answer(engine.transactional_ids)
    except Refused as refused:
        return msgspec.msgpack.encode(_Reply(refusal=refused.code))
    return msgspec.msgpack.encode(_Reply(msgspec.Raw(msgspec.msgpack.encode(value))))


class CoordinatedIds:
    """The transactional ids of a service's store. Methods that name a producer raise `Refused`, all
    of them `Unavailable` while no instance coordinates. Used by any thread, but for `publish` and
    `holds`, which the event loop calls."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine: Engine = service.engine
        self._idempotent: OrderedDict[int, None] = OrderedDict()  # numbers without an id

    def owner(self, id: str) -> str:
        """As `TransactionalIds.owner`."""
        owner: str = self._ask(OwnerOf(id), str)
        return owner

    def add_positions(
        self, id: str, producer: ProducerEpoch, group: str, changes: Sequence[PositionChange]
    ) -> None:
        """As `TransactionalIds.add_positions`."""
        self._ask(AddPositions(id, producer, group, tuple(map(PendingPosition.of, changes))), None)

    def pending(self, group: str) -> set[tuple[TopicName, int]]:
        """As `TransactionalIds.pending`."""
        found = self._ask(PendingOf(group), list[tuple[str, int]])
        return {(TopicName.parse(topic), number) for topic, number in found}

    def transactions_in(
        self, numbers: Collection[int], name: TopicName, partition: int
    ) -> dict[int, int]:
        """The write pointers of open transactions in a partition, by the number of the producer; 0
        for a producer with a transactional id that has none there."""
        question = TransactionsIn(tuple(numbers), str(name), partition)
        return self._ask(question, dict[int, int]) if numbers else {}

    async def holds(self, number: int, name: TopicName, partition: int) -> bool:
        """As `TransactionalIds.holds`."""
        if isinstance(self._engine.roles.commits.route(), Here):
            return self._engine.transactional_ids.holds(number, name, partition)
        if number in self._idempotent:
            return False
        found = await self._service.in_thread(self.transactions_in, (number,), name, partition)
        if number not in found:
            self._idempotent[number] = None
            if len(self._idempotent) > REMEMBERED_MAX:
                self._idempotent.popitem(last=False)
        return found.get(number, 0) != 0

    async def publish(
        self, id: str, producer: ProducerEpoch, name: TopicName, blocks: Sequence[NewBlock]
    ) -> Callable[[], Awaitable[list[Appended]]]:
        """Begin to store blocks of one partition, as `TransactionalIds.publish` does; returns a
        function that waits for their places."""
        route = self._engine.roles.commits.route()
        if isinstance(route, Here):
            publish = self._engine.transactional_ids.publish
            pending = await self._service.in_thread(publish, id, producer, name, blocks)
            return partial(self._service.outcome, pending)
        question = PublishInTransaction(
            id, producer, str(name), blocks[0].partition, tuple(bytes(new.block) for new in blocks)
        )
        asked = self._begin(partial(_reply, route.peer, question, list[Appended]))
        return lambda: asked

    def _begin(self, question: Callable[[], T]) -> "asyncio.Future[T]":
        """Ask in the background; the answer or the error is for the event loop."""
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[T] = loop.create_future()
        asked.add_done_callback(asyncio.Future.exception)  # nobody need wait for it
        cluster = self._engine.cluster
        assert cluster is not None, "a peer has been found in it"

        def ask() -> None:
            try:
                answer = question()
            except Exception as error:  # else the client would wait for ever
                loop.call_soon_threadsafe(_fail, asked, error)
            else:
                loop.call_soon_threadsafe(_settle, asked, answer)

        cluster.ask(ask)
        return asked

    def _ask(self, question: Question, type: Any) -> Any:
        route = self._engine.roles.commits.route()
        if isinstance(route, Here):
            return question.answer(self._engine.transactional_ids)
        return _reply(route.peer, question, type)


def _reply(peer: Peer, question: Question, type: Any) -> Any:
    reply = from_msgpack(peer.answer_kafka(msgspec.msgpack.encode(question)), _Reply)
    if reply.refusal:
        raise Refused(RefusalCode(reply.refusal))
    return from_msgpack(reply.value, type)


def _settle(asked: "asyncio.Future[T]", answer: T) -> None:
    if not asked.done():
        asked.set_result(answer)


def _fail(asked: "asyncio.Future[Any]", error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
