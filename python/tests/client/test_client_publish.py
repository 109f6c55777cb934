"""From messages to numbered blocks, and blocks into the log, without I/O."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tms.block import MESSAGES_MAX, Compression, decode, read_header
from tms.client.batching import REQUEST_BYTES, Batcher, KnownTopic
from tms.client.delivery import Delivery, Numbering, Unacknowledged, deliver
from tms.errors import OutOfOrderSequence, SequenceReused, TooLarge, Unavailable
from tms.model.keys import Partitioner
from tms.model.message import Appended, NewBlock
from tms.model.topic import Durability, TopicName

NAME = TopicName.parse("orders")


def batcher(
    partitions: int = 1, message_bytes_max: int = 1 << 20, batch_bytes: int = 100
) -> Batcher:
    return Batcher(
        KnownTopic(NAME, partitions, message_bytes_max, 0, Partitioner.CRC32C),
        Numbering(),
        batch_bytes=batch_bytes,
        compression=Compression.NONE,
        sticky=0,
    )


def values(blocks: Sequence[NewBlock]) -> list[bytes | None]:
    return [value for entry in blocks for value in decode(entry.block).values()]


def packed(to: Batcher, messages: Sequence[bytes | None]) -> list[NewBlock]:
    blocks: list[NewBlock] = []
    for _ in to.add_many(messages, None, None, None):
        blocks += to.pack()
    return blocks + (to.pack() if to.fillings else [])


@given(
    messages=st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=60),
    batch_bytes=st.integers(1, 500),
)
def test_every_message_is_in_one_block_in_order(
    messages: list[bytes | None], batch_bytes: int
) -> None:
    blocks = packed(batcher(batch_bytes=batch_bytes), messages)
    assert values(blocks) == messages
    headers = [read_header(entry.block) for entry in blocks]
    assert [header.producer_sequence for header in headers] == list(range(len(blocks)))
    assert len({header.producer_id for header in headers} - {0}) <= 1


@given(st.lists(st.integers(0, 400), max_size=80), st.integers(50, 300))
def test_send_many_stops_before_the_message_that_is_too_large(sizes: list[int], limit: int) -> None:
    to = batcher(message_bytes_max=limit, batch_bytes=1_000)
    bad = next((i for i, size in enumerate(sizes) if size > limit), None)
    taken: list[bytes | None] = []
    try:
        for _ in to.add_many([b"x" * size for size in sizes], None, None, None):
            taken += values(to.pack())
    except TooLarge as error:
        assert error.details["index"] == bad
    else:
        assert bad is None
    taken += values(to.pack())
    assert [len(value or b"") for value in taken] == sizes[:bad]


def test_a_block_never_has_more_messages_than_it_can_hold() -> None:
    blocks = packed(batcher(batch_bytes=REQUEST_BYTES), [b""] * (MESSAGES_MAX + 10))
    assert [read_header(entry.block).count for entry in blocks] == [MESSAGES_MAX, 10]


def test_what_waits_for_many_partitions_is_bounded_together() -> None:
    to = batcher(partitions=100, batch_bytes=1 << 20)
    added = 0
    while not to.add(b"x" * 10_000, None, None, added % 100):
        added += 1
    assert added * 10_000 < REQUEST_BYTES + 10_000


def test_messages_without_a_key_follow_the_sticky_partition() -> None:
    to = batcher(partitions=3)
    to.add(b"a", None, None, None)
    to.next_partition()
    to.add(b"b", None, None, None)
    to.add(b"c", b"key", {"h": b"1"}, 2)
    to.add(b"d", None, None, 2)
    assert {entry.partition: values([entry]) for entry in to.pack()} == {
        0: [b"a"],
        1: [b"b"],
        2: [b"c", b"d"],
    }


def test_keys_and_headers_stay_with_their_messages_when_only_some_have_them() -> None:
    to = batcher(batch_bytes=10_000)
    to.add(b"a", None, None, None)
    to.add(b"b", b"k", None, None)
    list(to.add_many([b"c", b"d"], None, None, None))
    to.add(b"e", None, {"h": b"1"}, None)
    list(to.add_many([b"f"], [b"l"], [None], None))
    (entry,) = to.pack()
    columns = decode(entry.block)
    assert columns.values() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert columns.keys() == [None, b"k", None, None, None, b"l"]
    assert columns.headers() == [{}, {}, {}, {}, {"h": b"1"}, {}]


def test_headers_are_taken_as_they_are_when_sent() -> None:
    to, headers = batcher(), {"h": b"1"}
    to.add(b"a", None, headers, None)
    headers["h"] = b"2"
    (entry,) = to.pack()
    assert decode(entry.block).headers() == [{"h": b"1"}]


class Log:
    """One topic of a service: stores each numbered block once, in order, and fails as scripted."""

    def __init__(self) -> None:
        self.stored: list[bytes | None] = []
        self.next: dict[tuple[int, int], int] = {}
        self.failures: list[str] = []
        self.requests = 0

    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = 0,
    ) -> list[Appended]:
        self.requests += 1
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise Unavailable("Lost on the way.")
        appended = [self._append(entry) for entry in blocks]
        if failure == "after":
            raise Unavailable("The answer was lost.", outcome="unknown")
        return appended

    def _append(self, entry: NewBlock) -> Appended:
        header = read_header(entry.block)
        place = (entry.partition, header.producer_id)
        wanted = self.next.get(place, 0)
        if header.producer_sequence > wanted:
            raise OutOfOrderSequence(f"{wanted} is next.")
        if header.producer_sequence < wanted - 8:
            raise SequenceReused("Stored long ago.")
        repeated = header.producer_sequence < wanted
        if not repeated:
            self.next[place] = wanted + 1
            self.stored += decode(entry.block).values()
        return Appended(entry.partition, 1, 0, header.count, 0, repeated)


def append(
    log: Log, numbering: Numbering, blocks: Sequence[NewBlock], *, one_by_one: bool = False
) -> list[Appended]:
    delivery = Delivery(NAME, numbering, None, Compression.NONE, 30)
    left = Unacknowledged(delivery, blocks, one_by_one=one_by_one)
    return deliver(log.append, left, ManualClock(), 30)


@pytest.mark.parametrize("failures", [["before"], ["after"], ["after", "before", "after"]])
def test_a_block_that_failed_is_stored_once(failures: list[str]) -> None:
    log, to = Log(), batcher()
    log.failures = list(failures)
    to.add(b"a", None, None, None)
    (place,) = append(log, Numbering(), to.pack())
    assert log.stored == [b"a"]
    assert place.duplicate == ("after" in failures)


def test_after_a_service_forgot_the_producer_all_blocks_left_are_numbered_anew() -> None:
    log, numbering = Log(), Numbering()
    known, lz4 = KnownTopic(NAME, 2, 100, 0, Partitioner.CRC32C), Compression.LZ4
    to = Batcher(known, numbering, batch_bytes=100, compression=lz4, sticky=0)
    blocks: list[NewBlock] = []
    for n in range(6):
        to.add(b"%d" % n, b"k", {"h": b"x"}, n % 2)
        if n < 2:
            append(log, numbering, to.pack())
        else:
            blocks += to.pack()
    log.next = {place: wanted for place, wanted in log.next.items() if place[0] == 0}
    append(log, numbering, blocks, one_by_one=True)
    assert log.stored == [b"%d" % n for n in range(6)]
    assert len({producer for partition, producer in log.next if partition == 1}) == 1
    assert numbering.take((NAME, 1))[1] == 2


def test_numbers_begin_anew_after_the_last_one() -> None:
    numbering = Numbering()
    first, _ = numbering.take((NAME, 0))
    numbering._next[NAME, 0] = (first, 2**32 - 1)
    assert numbering.take((NAME, 0)) == (first, 2**32 - 1)
    producer, sequence = numbering.take((NAME, 0))
    assert (producer != first, sequence) == (True, 0)


def test_a_numbering_remembers_a_bounded_number_of_places() -> None:
    numbering = Numbering()
    first, _ = numbering.take((NAME, 0))
    for partition in range(1, 20_000):
        numbering.take((NAME, partition))
    again, sequence = numbering.take((NAME, 0))
    assert (again != first, sequence) == (True, 0)
