"""Readers made of the client: consumers by each start and page size, on both event loops, `fetch`,
filters, groups, queues, views, delayed messages."""

import asyncio
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import tms
import tms.aio
from integration.soak.content import value_digest
from integration.soak.readers.writing import Place, cells, row, write

Row = list[Any]
TAIL = 1_500  # rows at the end that are read with pages of any size
TIMEOUT_S = 60.0


class Reader:
    """All readings of one topic, beside the true one."""

    def __init__(self, place: Place, bus: tms.Bus, topic: str, truth: list[Row]) -> None:
        self._place = place
        self._bus = bus
        self._topic = topic
        self._truth = truth
        self._random = Random(f"{place.seed}/{topic}/readers")

    def consumers(self) -> None:
        """Consume from each kind of start, with pages of many sizes."""
        self._consume("consumer", "earliest", {"kind": "earliest"})
        size = int(2 ** self._random.uniform(16, 20))
        self._consume(f"consumer, pages of {size}", "earliest", {"kind": "earliest"}, size)
        for start, fields in self._starts():
            size = int(2 ** self._random.uniform(0, 22)) if fields["tail"] else 4 << 20
            del fields["tail"]
            self._consume(f"consumer from {fields['kind']}, pages of {size}", start, fields, size)

    def _starts(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Positions in the middle and near the end."""
        if not self._truth:
            return
        for tail in (False, True):
            least = max(0, len(self._truth) - TAIL) if tail else 0
            pick = self._truth[self._random.randrange(least, len(self._truth))]
            rows_behind = sum(1 for one in self._truth if one[2] >= pick[2])
            near = rows_behind <= TAIL
            for kind in ("id", "after"):
                yield f"{kind}:{pick[2]}", {"kind": kind, "at": pick[2], "tail": near}
            ms = int(pick[2][:16], 16)
            yield f"time:{ms}", {"kind": "time", "at": ms, "tail": near}
            offsets: dict[int, int] = {}
            for partition in range(int(self._place.topics[self._topic]["partitions"])):
                there = [one[1] for one in self._truth if one[0] == partition]
                if there:
                    last = there[-TAIL:] if tail else there
                    offsets[partition] = self._random.choice(last)
            starts = {p: f"offset:{n}" for p, n in offsets.items()}
            at = {str(p): n for p, n in offsets.items()}
            yield starts, {"kind": "offset", "at": at, "tail": tail}

    def _consume(
        self, reader: str, start: Any, fields: dict[str, Any], fetch_bytes: int = 4 << 20
    ) -> None:
        partitions = list(start) if isinstance(start, dict) else None
        with self._bus.consumer(
            self._topic, start, partitions, stop_at_end=True, bytes_max=fetch_bytes
        ) as consumer:
            write(self._place, reader, self._topic, map(cells, consumer), start=fields)

    def fetches(self) -> None:
        """Read with `bus.fetch`, page by page."""

        def rows() -> Iterator[Row]:
            partitions = int(self._place.topics[self._topic]["partitions"])
            positions: dict[int, Any] = dict.fromkeys(range(partitions), "earliest")
            size = int(2 ** self._random.uniform(16, 22))
            while True:
                page = self._bus.fetch(self._topic, positions, bytes_max=size)
                yield from map(cells, page.messages())
                if page.next == positions:
                    return
                positions = dict(page.next)

        write(self._place, "bus.fetch", self._topic, rows())

    def filtered(self) -> None:
        """Read with a consumer with `where`."""
        write(
            self._place,
            "consumer with where",
            self._topic,
            map(cells, self._bus.consumer(self._topic, where="key ^= k1", stop_at_end=True)),
            key_prefix=b"k1".hex(),
        )

    def by_partition(self) -> None:
        """Read with a consumer for each partition."""
        partitions = int(self._place.topics[self._topic]["partitions"])

        def rows() -> Iterator[Row]:
            for partition in range(partitions):
                yield from map(
                    cells,
                    self._bus.consumer(self._topic, partitions=[partition], stop_at_end=True),
                )

        write(self._place, "consumer by partition", self._topic, rows())

    def group(self) -> None:
        """Read with a new group, up to the end."""
        with self._bus.consumer(
            self._topic, group=tms.Group("check", delivery="at-most-once"), stop_at_end=True
        ) as consumer:
            write(self._place, "group", self._topic, map(cells, consumer))

    def queue(self) -> None:
        """Receive from a new queue, until nothing is left."""

        def rows() -> Iterator[Row]:
            queue = self._bus.queue(self._topic, group="check", lease_s=600)
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline:
                messages = queue.receive(1_000, wait_s=0)
                if messages:
                    yield from map(cells, messages)
                    queue.ack(messages)
                    deadline = time.monotonic() + TIMEOUT_S  # small pages are slow, not stuck
                elif not queue.describe().backlog:
                    return
            raise TimeoutError(f"queue check of {self._topic} hands out nothing, but has a backlog")

        write(self._place, "queue", self._topic, rows(), ordered=False)

    def view(self) -> None:
        """Read a view: keys in hexadecimal and the digests of their values."""
        with self._bus.view(self._topic) as view:
            rows: list[Row] = [
                [None, None, None, k.hex(), None, value_digest(v)] for k, v in view.items()
            ]
        write(self._place, "view", self._topic, rows, of="view")

    def waiting(self) -> None:
        """List delayed messages that are not due."""

        def rows() -> Iterator[Row]:
            for one in self._bus.list_delayed(self._topic):
                yield row(one.partition, None, None, one.key, one.value, dict(one.headers))

        write(self._place, "delayed", self._topic, rows(), of="waiting", ordered=False)

    def asynchronous(self, loop: str) -> None:
        """Read with a consumer of asyncio, on either loop."""

        async def read() -> list[Row]:
            async with (
                tms.aio.connect(self._place.url, timeout_s=TIMEOUT_S) as bus,
                bus.consumer(self._topic, stop_at_end=True) as consumer,
            ):
                return [cells(message) async for message in consumer]

        if loop == "uvloop":
            import uvloop

            rows = uvloop.run(read())
        else:
            rows = asyncio.run(read())
        write(self._place, f"consumer on {loop}", self._topic, rows)
