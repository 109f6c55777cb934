"""Random operations on the embedded API, through HTTP and on a plain model, which must agree.

All worlds share one clock and the drawn bounds, and get the same operations; hypothesis chooses
them, and shows the shortest sequence after which they differ. The test compares ids, offsets,
contents, bounds and errors.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.bounds_kit import SEEDS, bounds_of
from tests.clocks import ManualClock
from tests.model_log import ModelClock, ModelTopic
from tests.waiting import until
from tests.worlds import EmbeddedWorld, HttpWorld, MemoryWorld, World
from tms.client import sending as producing
from tms.client.client import Bus
from tms.errors import (
    FewerPartitions,
    OffsetOutOfRange,
    PartitionNotFound,
    TMSError,
    TopicExists,
    TopicNotFound,
)
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import Message
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicSettings, parse_retention
from tms.server.service import RequestLimits

HOUR_MS = 3_600_000
NAMES = st.sampled_from(["orders", "orders", "other:orders"])
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.just(bytes(99)),
    st.just(bytes(5_000)),  # larger than pages and caches, and stored in a file of values
)
KEYS = st.one_of(st.none(), st.binary(max_size=3))
HEADERS = st.one_of(st.none(), st.dictionaries(st.text(min_size=1, max_size=2), st.binary()))
RETENTIONS = st.sampled_from(["forever", "1h", "1d", "14d"])
PARTITIONERS = st.sampled_from(Partitioner)
DURABILITIES = st.sampled_from([None, "written", "synced"])

Cells = tuple[bytes | None, bytes | None, dict[str, bytes]]  # key, value, headers


class Agreement(RuleBasedStateMachine):
    """The worlds, the model, and the operations on them."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tms-agreement-"))
        self.clock = ManualClock()
        self.worlds: list[World] = []
        self.bounds = ExitStack()
        self.topics: dict[str, ModelTopic] = {}
        self.generations: dict[str, int] = {}
        self.cells: dict[tuple[str, int], list[Cells]] = {}
        self.starts: dict[tuple[str, int], int] = {}  # in the world under comparison
        self.retention = ModelClock(self.clock.now_ms(), self.clock.monotonic_s())

    def teardown(self) -> None:
        try:
            for topic in self.topics:
                self._compare(topic, Position.earliest(), 1 << 20)
        finally:
            for world in self.worlds:
                world.close()
            self.bounds.close()
            shutil.rmtree(self.directory)

    # -- topics --------------------------------------------------------------------------------

    @initialize(retention=RETENTIONS, bounds=SEEDS, partitioner=PARTITIONERS)
    def begin(self, retention: str, bounds: int, partitioner: Partitioner) -> None:
        drawn = bounds_of(bounds)
        self.bounds.enter_context(drawn.set())
        config, limits = drawn.config(threads=2), drawn.make(RequestLimits, threads=2)
        self.worlds = [
            MemoryWorld(self.clock, config),
            EmbeddedWorld(self.clock, self.directory / "embedded", config),
            HttpWorld(self.clock, self.directory / "http", config, limits),
        ]
        self.create("orders", 2, retention, partitioner)

    @rule(
        topic=NAMES,
        partitions=st.integers(1, 3),
        retention=RETENTIONS,
        partitioner=PARTITIONERS,
    )
    def create(self, topic: str, partitions: int, retention: str, partitioner: Partitioner) -> None:
        kept_ms = parse_retention(retention)
        wanted = TopicSettings(partitions, kept_ms, partitioner=partitioner)
        found = self._each(
            lambda bus: bus.create_topic(topic, partitions, retention, partitioner=partitioner)
        )
        known = self.topics.get(topic)
        if known is None:
            generation = self.generations.get(topic, 0) + 1
            self.generations[topic] = generation
            known = self.topics[topic] = ModelTopic(wanted, generation)
            known.grow()
            for partition in range(3):
                self.cells[topic, partition] = []
        elif known.settings != wanted:
            assert found is TopicExists
            return
        assert (found.generation, found.settings) == (known.generation, wanted)
        self._list()

    @rule(topic=NAMES, sure=st.integers(0, 3))
    def delete(self, topic: str, sure: int) -> None:
        if sure:
            return  # otherwise there would mostly be none
        found = self._each(lambda bus: bus.delete_topic(topic))
        assert found is (None if self.topics.pop(topic, None) else TopicNotFound)
        self._list()

    @rule(topic=NAMES, partitions=st.integers(1, 3), retention=RETENTIONS)
    def update(self, topic: str, partitions: int, retention: str) -> None:
        found = self._each(
            lambda bus: bus.update_topic(topic, partitions=partitions, retention=retention)
        )
        known = self.topics.get(topic)
        if known is None:
            assert found is TopicNotFound
        elif partitions < known.settings.partitions:
            assert found is FewerPartitions
        else:
            kept_ms = parse_retention(retention)
            known.settings = replace(known.settings, partitions=partitions, retention_ms=kept_ms)
            known.grow()
            assert found.settings == known.settings

    @rule(data=st.data(), topic=NAMES)
    def truncate(self, data: st.DataObject, topic: str) -> None:
        before = data.draw(self._positions(topic), label="before")
        partition = data.draw(st.none() | st.integers(0, 3), label="partition")
        found = self._each(lambda bus: bus.truncate_topic(topic, before, partition))
        known = self.topics.get(topic)
        if known is None:
            assert found is TopicNotFound
            return
        if partition is not None and partition >= len(known.partitions):
            assert found is PartitionNotFound
            return
        cut = slice(None) if partition is None else slice(partition, partition + 1)
        for one in known.partitions[cut]:
            one.truncate(before)
        self._compare(topic, Position.earliest(), 1 << 20)

    # -- publishing ----------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        key=KEYS,
        value=VALUES,
        headers=HEADERS,
        durability=DURABILITIES,
    )
    def publish(
        self,
        data: st.DataObject,
        key: bytes | None,
        value: bytes | None,
        headers: dict[str, bytes] | None,
        durability: str | None,
    ) -> None:
        topic, given = self._draw_place(data, key)
        partition = self._partition(topic, key, given)
        ends = [
            world.bus.fetch(topic, {partition: Position.latest()}).next[partition]
            for world in self.worlds
        ]
        found = self._each(lambda bus: bus.publish(topic, value, key, headers, given, durability))
        assert [found] == self._published(topic, [(key, value, headers or {})], given)
        for world, end in zip(self.worlds, ends, strict=True):
            (message,) = _drain(world.bus, topic, partition, end, 1)
            assert message.id == found, f"{world.name}: latest was not where the message came"

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        messages=st.lists(st.tuples(st.binary(max_size=3), VALUES), min_size=1, max_size=12),
        keyed=st.booleans(),
        durability=DURABILITIES,
        compression=st.sampled_from(["none", "lz4", "zstd"]),
    )
    def publish_many(
        self,
        data: st.DataObject,
        messages: list[tuple[bytes, bytes | None]],
        keyed: bool,
        durability: str | None,
        compression: str,
    ) -> None:
        topic, given = self._draw_place(data, messages[0][0] if keyed else None)
        keys = [key for key, _ in messages] if keyed else None
        values = [value for _, value in messages]
        found = self._each(
            lambda bus: bus.publish_many(
                topic, values, keys, None, given, durability, compression=compression
            )
        )
        cells: list[Cells] = [(key if keyed else None, value, {}) for key, value in messages]
        assert found == self._published(topic, cells, given)

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        messages=st.lists(st.tuples(st.binary(max_size=3), VALUES), min_size=1, max_size=25),
        batch_bytes=st.sampled_from([1, 2_000, 100_000]),
        durability=st.sampled_from([None, "none", "written", "synced"]),
    )
    def produce(
        self,
        data: st.DataObject,
        messages: list[tuple[bytes, bytes | None]],
        batch_bytes: int,
        durability: str | None,
    ) -> None:
        topic, _ = self._draw_place(data, b"")

        def send(bus: Bus) -> None:
            size = min(batch_bytes, producing.REQUEST_BYTES)
            with bus.producer(topic, batch_bytes=size, durability=durability) as producer:
                for key, value in messages:
                    producer.send(value, key)

        assert self._each(send) is None
        self._published(topic, [(key, value, {}) for key, value in messages], None)
        if durability == "none":  # acknowledged, but not yet stored
            self._until_stored(topic)

    # -- reading -------------------------------------------------------------------------------

    @rule(data=st.data(), topic=NAMES, bytes_max=st.sampled_from([1, 1_000, 1 << 20]))
    def read(self, data: st.DataObject, topic: str, bytes_max: int) -> None:
        positions = st.lists(self._positions(topic), min_size=1, max_size=4)
        for position in data.draw(positions, label="positions"):
            self._compare(topic, position, bytes_max)

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)), label="topic")
        for world in self.worlds:
            self._learn_starts(world, topic)
            with world.bus.consumer(topic, stop_at_end=True) as consumer:
                found = list(consumer)
            expected = [
                message
                for partition in range(len(self.topics[topic].partitions))
                for message in self._expected(topic, partition, Position.earliest())
            ]
            assert sorted(found, key=lambda one: (one.partition, one.offset)) == expected

    # -- time and crashes ----------------------------------------------------------------------

    @rule(ms=st.one_of(st.integers(0, 5), st.integers(0, 3 * HOUR_MS), st.just(25 * HOUR_MS)))
    def time_passes(self, ms: int) -> None:
        self.clock.pass_ms(ms)

    @rule(ms=st.one_of(st.integers(-5, 5), st.sampled_from([-2 * HOUR_MS, 240 * HOUR_MS])))
    def clock_jumps(self, ms: int) -> None:
        self.clock.jump_ms(ms)

    @rule()
    def confirm_clock(self) -> None:
        for world in self.worlds:
            world.engine.confirm_clock()
        self.retention.base_ms = self.clock.now_ms()
        self.retention.base_s = self.clock.monotonic_s()

    @rule()
    def clean(self) -> None:
        for world in self.worlds:
            world.engine.maintenance.clean()
        self.retention.judged_ms = self._now_ms()
        for topic in self.topics.values():
            topic.clean(self._now_ms())

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        for world in self.worlds:
            if killed:
                world.kill()
            else:
                world.restart()
        self.retention.started(self.clock.now_ms(), self.clock.monotonic_s())

    @invariant()
    def descriptions_agree(self) -> None:
        for topic in self.topics:
            for world in self.worlds:
                self._learn_starts(world, topic)

    # -- inside --------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self.retention.now_ms(self.clock.now_ms(), self.clock.monotonic_s())

    def _each(self, call: Callable[[Bus], Any]) -> Any:
        """The answer of all worlds, or the class of their error."""
        answers = []
        for world in self.worlds:
            try:
                answers.append(call(world.bus))
            except TMSError as error:
                answers.append(type(error))
        for world, answer in zip(self.worlds, answers, strict=True):
            known, other = self.worlds[0].name, world.name
            assert _plain(answer) == _plain(answers[0]), f"{known} and {other} differ"
        return answers[0]

    def _list(self) -> None:
        for namespace in ("default", "other"):
            found = self._each(lambda bus, n=namespace: [i.name for i in bus.list_topics(n)])  # type: ignore[misc]
            expected = [topic for topic in self.topics if (":" in topic) == (namespace == "other")]
            assert [str(name) for name in found] == expected

    def _draw_place(self, data: st.DataObject, key: bytes | None) -> tuple[str, int | None]:
        """A topic, and an existing partition; none if the key decides."""
        topic = data.draw(st.sampled_from(sorted(self.topics)), label="topic")
        if key is not None:
            return topic, None
        count = self.topics[topic].settings.partitions
        return topic, data.draw(st.integers(0, count - 1), label="partition")

    def _partition(self, topic: str, key: bytes | None, given: int | None) -> int:
        if given is not None:
            return given
        settings = self.topics[topic].settings
        return settings.partitioner.partition_of(key or b"", settings.partitions)

    def _published(self, topic: str, cells: list[Cells], given: int | None) -> list[MessageId]:
        """Note messages published in this order; returns the ids that they must have."""
        known = self.topics[topic]
        ids = []
        for key, value, headers in cells:
            partition = self._partition(topic, key, given)
            ids += known.partitions[partition].append([value], self.clock.now_ms())
            self.cells[topic, partition].append((key, value, headers))
        return ids

    def _until_stored(self, topic: str) -> None:
        ends = [one.end for one in self.topics[topic].partitions]
        for world in self.worlds:

            def stored(bus: Bus = world.bus) -> bool:
                infos = bus.describe_topic(topic).partition_infos
                return [one.end_offset for one in infos] == ends

            until(stored)

    def _positions(self, topic: str) -> st.SearchStrategy[Position]:
        known = self.topics.get(topic)
        ids = [id for one in known.partitions for id in one.ids] if known else []
        now_ms = self.clock.now_ms()
        kinds = [
            st.sampled_from([Position.earliest(), Position.latest()]),
            st.builds(Position.offset, st.integers(0, 40)),
            st.builds(Position.time, st.integers(now_ms - 2 * HOUR_MS, now_ms + 5)),
        ]
        if ids:
            some = st.sampled_from(ids)
            kinds += [st.builds(Position.at, some), st.builds(Position.after, some)]
            kinds.append(st.builds(lambda id: Position.time(id.time_ms + 1), some))
        return st.one_of(kinds)

    def _learn_starts(self, world: World, topic: str) -> None:
        """Find the begin of each partition in this world, within the model's range."""
        known = self.topics[topic]
        info = world.bus.describe_topic(topic)
        assert (info.generation, info.settings) == (known.generation, known.settings)
        for one, model in zip(info.partition_infos, known.partitions, strict=True):
            assert one.end_offset == model.end, world.name
            assert one.start_offset in known.starts(one.partition, self._now_ms()), world.name
            readable = model.ids[one.start_offset :]
            assert one.first_id == (str(readable[0]) if readable else None), world.name
            assert one.last_id == (str(readable[-1]) if readable else None), world.name
            self.starts[topic, one.partition] = one.start_offset

    def _expected(self, topic: str, partition: int, position: Position) -> list[Message]:
        model = self.topics[topic].partitions[partition]
        start = self.starts[topic, partition]
        cells = self.cells[topic, partition]
        return [
            Message(topic, partition, offset, id, *cells[offset])
            for offset, id, _ in model.readable(position)
            if offset >= start
        ]

    def _compare(self, topic: str, position: Position, bytes_max: int) -> None:
        known = self.topics.get(topic)
        if known is None:
            assert self._each(lambda bus: bus.fetch(topic, position)) is TopicNotFound
            return
        for world in self.worlds:
            self._learn_starts(world, topic)
            for partition, model in enumerate(known.partitions):
                start = self.starts[topic, partition]
                try:
                    found = _drain(world.bus, topic, partition, position, bytes_max)
                except OffsetOutOfRange as error:
                    assert position.kind is PositionKind.OFFSET
                    assert not start <= position.number <= model.end
                    assert error.details == {"earliest": start, "end": model.end}
                    continue
                assert (
                    position.kind is not PositionKind.OFFSET
                    or start <= position.number <= model.end
                )
                assert found == self._expected(topic, partition, position), world.name


def _drain(
    bus: Bus, topic: str, partition: int, position: Position, bytes_max: int
) -> list[Message]:
    """Everything from a position on, by as many fetches as needed."""
    found: list[Message] = []
    while True:
        page = bus.fetch(topic, {partition: position}, bytes_max=bytes_max)
        found += page.messages()
        if page.ended:
            return found
        position = page.next[partition]


def _plain(answer: Any) -> Any:
    """The part of an answer that is equal in all worlds: not its bytes in the store."""
    if hasattr(answer, "partition_infos"):
        return (answer.name, answer.generation, answer.created_ms, answer.settings)
    return answer


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
