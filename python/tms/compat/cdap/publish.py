"""Publish, store and rollback of `/v1`.

* All messages of a request are stored, one behind the other, or none is.
* What is published is synced as the topic says; in a transaction always.
* Memory for a body is reserved until what it carries is stored. Large bodies are read and packed by
  another thread.
"""

from collections.abc import Iterable, Iterator

from tms.api import routes
from tms.block import MESSAGES_MAX, encode
from tms.compat.cdap import answers, avro, names
from tms.compat.cdap.answers import Refusal, wrong
from tms.compat.cdap.avro import RollbackDetail
from tms.model.ids import SEQUENCES_PER_MS, TIME_MS_MAX
from tms.model.message import Appended, NewBlock
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import TopicName
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, header
from tms.server.service import Service
from tms.transactions.uncommitted import StoredRange

BLOCK_BYTES = 1 << 20
_INLINE_BYTES = 16 << 10  # bodies up to this size are read by the event loop itself
_PACKED_BYTES = 16  # that a block adds to each message, at most


class CdapPublishing:
    """Stores messages, and rolls them back."""

    def __init__(self, service: Service, lifetime_ms: int) -> None:
        self._service = service
        self._lifetime_ms = lifetime_ms  # of transactions

    async def publish(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/publish"""
        require_avro(exchange)
        service = self._service
        async with self._service.received(exchange) as body:
            request = avro.decode_publish(body.data)
            blocks = await self._packed(body, request.payloads)
            pointer = request.write_pointer
            if pointer is None and not blocks:
                raise wrong(
                    "Empty payload is only allowed for publishing transactional message. "
                    f"Topic: {names.qualified(name)}"
                )
            names.require_one_partition(service.engine.settings(name), name)
            if pointer is None:
                await service.outcome(service.engine.submit(name, blocks))
                answers.nothing(exchange)
                return
            self._require_young(pointer)
            client = exchange.principal or exchange.peer_address
            appended = await service.in_thread(self._publish_in, name, blocks, pointer, client)
        answers.avro(exchange, avro.encode_rollback(_detail(pointer, appended)))

    async def store(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/store"""
        require_avro(exchange)
        service = self._service
        async with self._service.received(exchange) as body:
            request = avro.decode_publish(body.data)
            blocks = await self._packed(body, request.payloads)
            if request.write_pointer is None or not blocks:
                raise wrong(
                    "Store request must be transactional with payload. "
                    f"Topic: {names.qualified(name)}"
                )
            names.require_one_partition(service.engine.settings(name), name)
            stage = service.engine.transactions.stage
            await service.in_thread(stage, name, blocks, request.write_pointer)
        answers.nothing(exchange)

    async def roll_back(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/rollback"""
        async with self._service.received(exchange) as body:
            detail = avro.decode_rollback(body.data)
        if detail.write_pointer is None:
            raise Refusal(routes.INTERNAL, "Only a transaction can be rolled back.")
        first = (detail.start_ms, detail.start_sequence)
        last = (detail.end_ms, detail.end_sequence)
        if first > last or not _is_message_time(first) or not _is_message_time(last):
            raise wrong(
                "What is to be rolled back is no range of messages; send what publish answered."
            )
        range = StoredRange(name, 0, first, last, detail.write_pointer)
        await self._service.in_thread(self._service.engine.transactions.roll_back, range)
        answers.nothing(exchange)

    async def _packed(self, body: Body, payloads: Iterable[bytes]) -> list[NewBlock]:
        size = len(body.data)
        self._service.metrics.bytes_in += size
        if size <= _INLINE_BYTES:
            return list(_blocks(payloads))
        await body.reserve(size + _PACKED_BYTES * min(size, avro.MESSAGES_MAX))
        service = self._service
        return await service.in_turn(service.checking, lambda: list(_blocks(payloads)))

    def _publish_in(
        self, name: TopicName, blocks: list[NewBlock], pointer: int, client: str
    ) -> list[Appended]:
        transactions = self._service.engine.transactions
        if not blocks:
            return transactions.refer(name, 0, pointer, client)
        pending = transactions.submit(name, blocks, pointer, client)
        return pending.result(self._service.limits.publish_timeout_s)

    def _require_young(self, write_pointer: int) -> None:
        lifetime_ms = self._lifetime_ms
        if write_pointer // POINTERS_PER_MS + lifetime_ms <= self._service.clock.now_ms():
            raise Refusal(
                routes.INTERNAL,
                f"Transaction {write_pointer} has exceeded max lifetime {lifetime_ms} ms",
            )


def require_avro(exchange: Exchange) -> None:
    """Raises `Refusal` unless the body says that it is Avro."""
    if header(exchange, b"content-type") != answers.AVRO:
        raise wrong("Only avro/binary content type is supported.")


def _detail(pointer: int, appended: list[Appended]) -> RollbackDetail:
    """The range of a transaction's messages; if nothing was stored, a range that never has
    messages."""
    if not appended:
        return RollbackDetail(pointer, 0, 0, 0, 0)
    first, last = appended[0], appended[-1]
    end = last.sequence + last.count - 1
    return RollbackDetail(pointer, first.time_ms, first.sequence, last.time_ms, end)


def _is_message_time(time: tuple[int, int]) -> bool:
    return 0 <= time[0] <= TIME_MS_MAX and 0 <= time[1] < SEQUENCES_PER_MS


def _blocks(payloads: Iterable[bytes]) -> Iterator[NewBlock]:
    """The payloads packed, in order."""
    some: list[bytes] = []
    size = 0
    for payload in payloads:
        if some and (size + len(payload) > BLOCK_BYTES or len(some) == MESSAGES_MAX):
            yield NewBlock(0, encode(some))
            some, size = [], 0
        some.append(payload)
        size += len(payload)
    if some:
        yield NewBlock(0, encode(some))
