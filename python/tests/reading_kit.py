"""One partition in a geometry that a seed draws, its messages as a plain list, and all of its
readers."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest

import tms
import tms.aio
from tests import cdap_kit
from tests.clocks import ManualClock
from tests.http_kit import Client, Served, serving
from tests.log_kit import KeptStore
from tms.api import routes
from tms.block import encode
from tms.client.cursor import page as page_of
from tms.compat.cdap.avro import ConsumeRequest
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.engine.observer import StoreObserver
from tms.log.partition import LogLimits
from tms.model.ids import MessageId
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position, PositionKind
from tms.model.snapshot import Isolation
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicStaged
from tms.spark.rows import WantedColumns, batches
from tms.spark.source.from_service import ServiceReader
from tms.spark.source.topics import Split

NAME = TopicName.parse("t")
PATH = "/v2/namespaces/default/topics/t"
KEYS = (None, b"a", b"b", b"c")
BOUNDS = {  # pages and looks of readers, by the modules of their names
    "tms.topics.filtering.PAGE_BYTES": 1 << 20,
    "tms.topics.internal_topic.READ_BYTES": 8 << 20,
    "tms.log.reader._LOOK_BYTES": 4 << 20,
    "tms.log.recovery.SCAN_BYTES": 4 << 20,
    "tms.topics.compaction.rewriting.PAGE_BYTES": 1 << 20,
    "tms.topics.compaction.erasing.PAGE_BYTES": 1 << 20,
    "tms.engine.observer.partition.READ_BYTES": 8 << 20,
    "tms.compat.cdap.poll.FETCH_BYTES": 256 << 10,
    "tms.spark.source.from_service.FETCH_BYTES": 8 << 20,
    "tms.spark.source.from_service.FIRST_FETCH_BYTES": 1 << 20,
    "tms.queues.reading.AHEAD_BYTES": 1 << 20,
    "tms.queues.reading.AGAIN_BYTES": 256 << 10,
    "tms.client.view.FETCH_BYTES": 4 << 20,
}


class Row(NamedTuple):
    """A message as every reader must show it."""

    offset: int
    id: MessageId
    key: bytes | None
    value: bytes | None


def row(message: tms.Message) -> Row:
    return Row(message.offset, message.id, message.key, message.value)


def drawn(random: Random, low: int, high: int) -> int:
    """A bound, from absurdly small to its default, each order of size as likely."""
    return int(low * (high / low) ** random.random())


@dataclass
class Partition:
    """The contents of the partition: `stored` is the view of a reader of all messages, `committed`
    the offsets among these that other readers see too."""

    served: Served
    clock: ManualClock
    store: KeptStore
    random: Random
    stored: dict[int, Row] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    floor: int = 0
    end: int = 0

    @property
    def engine(self) -> Engine:
        return self.served.service.engine

    @property
    def url(self) -> str:
        return self.served.url

    @property
    def rows(self) -> list[Row]:
        """The committed messages that are readable."""
        return [one for one in self.everything if one.offset in self.committed]

    @property
    def everything(self) -> list[Row]:
        return [self.stored[at] for at in sorted(self.stored) if at >= self.floor]

    # -- events ------------------------------------------------------------------------------------

    def publish(self) -> None:
        random = self.random
        count = random.choice((1, 1, 1, 2, 5, 20))
        keys = [random.choice(KEYS) for _ in range(count)]
        values = [random.randbytes(random.choice((0, 1, 9, 200))) for _ in range(count)]
        block = NewBlock(0, encode(values, keys))
        how = random.random()
        committed = True
        if how < 0.7:
            self.engine.append(NAME, [block])
        else:
            tx = self.engine.transactions
            id = tx.begin(timeout_s=600).transaction_id
            if how < 0.85:
                tx.stage(NAME, [block], id)
                tx.commit(Commit(id, staged=(TopicStaged(NAME, 0, 1),)))
            else:
                tx.submit(NAME, [block], id).result(5)
                committed = how < 0.92
                if committed:
                    tx.commit(Commit(id))
                else:
                    tx.abort(id)
        self._note(keys, values, committed)
        self.clock.pass_ms(random.choice((0, 0, 1, 3)))

    def _note(self, keys: list[bytes | None], values: list[bytes], committed: bool) -> None:
        last = self._newest_id()
        first = last.sequence - len(keys) + 1
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            id = MessageId(last.time_ms, first + at)
            self.stored[self.end] = Row(self.end, id, key, value)
            if committed:
                self.committed.add(self.end)
            self.end += 1

    def _newest_id(self) -> MessageId:
        log = self.engine.topics.partitions.get(NAME, self.engine.topics.registry.find(NAME), 0)
        assert log.state.end_offset > self.end
        return MessageId(*log.state.last)

    def erase_key(self, key: bytes) -> None:
        self.engine.erase(NAME, key=key)
        for offset in [at for at, one in self.stored.items() if one.key == key]:
            del self.stored[offset]

    def erase_from(self, offset: int, count: int) -> None:
        """Erase so many messages, one by one, by their ids."""
        for at in range(offset, offset + count):
            if at in self.stored:
                self.engine.erase(NAME, id=self.stored.pop(at).id)

    def truncate(self, offset: int) -> None:
        self.engine.truncate_topic(NAME, Position.offset(offset))
        self.floor = max(self.floor, offset)

    def roll(self) -> None:
        log = self.engine.topics.partitions.get(NAME, self.engine.topics.registry.find(NAME), 0)
        with log.state.changing():
            log.state.load()
            if log.state.chain.active is not None and log.state.chain.record.last < log.state.last:
                log.state.roll(self.clock.now_ms())

    def change(self) -> None:
        """Let an event happen to the partition."""
        random = self.random
        what = random.random()
        if what < 0.75 or not self.stored:
            self.publish()
        elif what < 0.85:
            self.roll()
        elif what < 0.9:
            self.erase_key(random.choice(KEYS[1:]) or b"a")
        elif what < 0.97:
            self.erase_from(random.choice([*self.stored]), random.choice((1, 2, 30)))
        else:
            self.truncate(random.randrange(self.floor, self.end + 1))

    # -- readers -----------------------------------------------------------------------------------

    def positions(self) -> Iterator[tuple[Position, list[Row]]]:
        """Every kind of position, with the committed messages from there on."""
        random, everything = self.random, self.rows
        yield Position.earliest(), everything
        yield Position.latest(), []
        for offset in {self.floor, self.end, random.randrange(self.floor, self.end + 1)}:
            wanted = [one for one in everything if one.offset >= offset]
            if not wanted or wanted[0].offset == offset or offset >= self._earliest():
                yield Position.offset(offset), wanted
        for one in random.sample(everything, min(2, len(everything))):
            yield Position.at(one.id), [each for each in everything if each.id >= one.id]
            yield Position.after(one.id), [each for each in everything if each.id > one.id]
            time_ms = one.id.time_ms
            later = [each for each in everything if each.id.time_ms >= time_ms]
            yield Position.time(time_ms), later

    def _earliest(self) -> int:
        return self.engine.describe_topic(NAME).partition_infos[0].start_offset

    def bytes_max(self) -> int:
        return drawn(self.random, 1, 1 << 20)

    def fetched(self, position: Position, isolation: Isolation = Isolation.COMMITTED) -> list[Row]:
        """Read with `Engine.fetch`, which returns messages as long as there are any."""
        found, following = list[Row](), position
        while True:
            at = [PartitionPosition(0, following)]
            answer = self.engine.fetch(NAME, at, self.bytes_max(), isolation=isolation)
            page = page_of("t", {0: following}, [answer])
            found += map(row, page.messages())
            if answer.ended:
                return found
            assert page.batches, "an answer without messages that is not the end"
            following = page.next[0]

    def paged(self, bus: tms.Bus, position: Position) -> list[Row]:
        """Read with `Bus.fetch`."""
        found, following = list[Row](), position
        while True:
            page = bus.fetch("t", {0: following}, bytes_max=self.bytes_max())
            found += map(row, page.messages())
            if page.ended:
                return found
            following = page.next[0]

    def consumed(self, bus: tms.Bus, position: Position, where: str | None = None) -> list[Row]:
        size = self.bytes_max()
        with bus.consumer("t", position, stop_at_end=True, bytes_max=size, where=where) as one:
            return [row(message) for message in one]

    async def consumed_async(self, bus: tms.aio.AsyncBus, position: Position) -> list[Row]:
        one = bus.consumer("t", position, stop_at_end=True, bytes_max=self.bytes_max())
        async with one:
            return [row(message) async for message in one]

    def over_http(self, client: Client, position: Position, media: str) -> list[Row]:
        """Read with plain requests, in JSON or Arrow."""
        found, following = list[Row](), f"0:{position}"
        while True:
            limit = self.random.choice((1, 3, 100))
            query = f"start={following}&bytes_max={self.bytes_max()}&limit={limit}"
            answer = client.request("GET", f"{PATH}/messages?{query}", accept=media)
            assert answer.status == 200, answer
            found += (_from_json if media == routes.JSON else _from_arrow)(answer.body)
            following = answer.headers["tms-next"]
            if answer.headers["tms-reached"] == answer.headers["tms-end"]:
                return found

    def polled(self, client: Client, position: Position) -> list[tuple[bytes, bytes]]:
        """Read as CDAP's clients do: ids without their payload half, and payloads."""
        start: bytes | int | None = None
        if position.id is not None:
            start = bytes(position.id)
        elif position.kind is PositionKind.TIME:
            start = position.number
        inclusive = position.kind is not PositionKind.AFTER
        body = cdap_kit.encode_consume(ConsumeRequest(start, inclusive, None, None))
        path = "/v1/namespaces/default/topics/t/poll"
        answer = client.request("POST", path, body, media="avro/binary")
        assert answer.status == 200, answer
        return [(id[:10], payload) for id, payload in cdap_kit.decode_messages(answer.body)]

    def beside(self) -> list[Row]:
        """Read as an observer that owns nothing, as Spark reads HBase."""
        image = self.engine.transactions._image
        assert image is not None
        image._shown = None
        image.write(self.clock.now_ms())
        one = StoreObserver(self.store, self.clock).topic("t").partition(0)
        start, stop = one.start(), one.end().offset
        blocks = [*one.blocks(*one.span(start, stop))] if start < stop else []
        return _of_batches(batches(blocks, "t", start, stop, WantedColumns(message_id=True)))

    def split(self, start: int, stop: int) -> list[Row]:
        """Read as a task of Spark, over the service."""
        reader = ServiceReader(self.url)
        try:
            found = reader.read(Split("t", 0, start, stop))
            return _of_batches(batches(found, "t", start, stop, WantedColumns(message_id=True)))
        finally:
            reader.close()

    def received(self, bus: tms.Bus, group: str) -> list[Row]:
        """Receive from a queue, until nothing is left; some messages come twice."""
        queue, found = bus.queue("t", group=group, backoff_first_s=0), dict[int, Row]()
        given = set[int]()
        while messages := queue.receive(self.random.choice((1, 7, 100))):
            again = [m for m in messages if m.offset not in given and self.random.random() < 0.2]
            given.update(m.offset for m in again)
            for m in messages:
                found[m.offset] = Row(m.offset, m.id, m.key, m.value)
            if again:
                queue.nack(again, delay_s=0)
            if rest := [m for m in messages if m not in again]:
                queue.ack(rest)
            self.clock.pass_ms(200)
        return [found[at] for at in sorted(found)]


def _from_json(body: bytes) -> Iterator[Row]:
    from tms.api.messages import cells_in

    for m in json.loads(body)["messages"]:
        key, value, _ = cells_in(m["key"], m["value"], m["headers"], m["encoding"])
        yield Row(m["offset"], MessageId.parse(m["id"]), key, value)


def _from_arrow(body: bytes) -> Iterator[Row]:
    for m in pa.ipc.open_stream(body).read_all().to_pylist():
        yield Row(m["offset"], MessageId.parse(m["id"]), m["key"], m["value"])


def _of_batches(found: Iterable[pa.RecordBatch]) -> list[Row]:
    return [
        Row(m["offset"], MessageId.parse(m["id"]), m["key"], m["value"])
        for batch in found
        for m in batch.to_pylist()
    ]


@contextmanager
def partition(seed: int, **bounds: int) -> Iterator[Partition]:
    """A partition whose bounds come from a seed, except for the given ones."""
    random, clock, store = Random(seed), ManualClock(), KeptStore(shared=True)
    limits = LogLimits(
        segment_bytes=bounds.get("segment_bytes", drawn(random, 200, 20_000)),
        snapshot_bytes=drawn(random, 500, 64 << 20),
    )
    cache_bytes = bounds.get("cache_bytes", random.choice((0, drawn(random, 100, 1 << 20))))
    config = EngineConfig(cache_bytes=cache_bytes, threads=2, log=limits)
    with pytest.MonkeyPatch.context() as patch:
        for name, default in BOUNDS.items():
            patch.setattr(name, drawn(random, 100, default))
        with serving(store, clock=clock, config=config) as served:
            settings = TopicSettings(1, None, durability=Durability.WRITTEN)
            served.service.engine.create_topic(NAME, settings)
            yield Partition(served, clock, store, random)
