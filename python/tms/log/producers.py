"""The blocks that a partition has stored of each producer, so that a repeated block is recognised
(pure state).

    window of producers ─┐ the longest silent one
    window of keys ──────┴─▶ forgotten producers: pages of rows ─▶ dropped after `REMEMBERED_S`
    window of counting producers ─▶ the same, of their own ─▶ dropped after `COUNTING_S`

An idempotency key is a producer of one block whose id has the bit `KEY_BIT`. The sequence of a
counting producer counts messages (`log.counting`).

Invariants

* A producer's blocks are stored in the order of its sequence numbers, without gaps and once each.
* The newest `BLOCKS_REMEMBERED` blocks of each producer are known exactly: a repetition gets the
  ids of the first one.
* A window holds `producers_max` producers, however long they are silent. Producers of one kind do
  not push those of another out of their window.
* A producer that was pushed out is remembered for `REMEMBERED_S` more of the time in which the
  partition is open, also after a restart and by the next owner: its rows are in the snapshot of the
  producers or follow from the blocks after it. When it publishes again it is back in its window.
  Counting producers are remembered for `COUNTING_S`, or at least for `REMEMBERED_S` if there are
  more than `COUNTING_ROWS_MAX` rows of them.
* Memory is bounded: beyond `ROWS_MAX` rows a producer that is in no window is refused with
  `Overloaded`, because it might be one that would have to be forgotten too early.
* After that time a producer that publishes again is refused with `OutOfOrderSequence` and continues
  under a new id. A counting producer continues with any sequence.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from tms.block import EPOCH_BITS, BlockHeader, Flags
from tms.errors import OutOfOrderSequence, Overloaded, SequenceReused
from tms.log import counting
from tms.log.records import FIRST_KEY, FORGOTTEN_ROW, ProducersRecord, RememberedBlock
from tms.model.message import KEY_BIT

BLOCKS_REMEMBERED = 8
SEQUENCE_LIMIT = 1 << 32
REMEMBERED_S = 900.0  # of a producer that was pushed out of its window
PAGE_PRODUCERS = 8_192
ROWS_MAX = 4_000_000  # of about 46 bytes
COUNTING_S = 86_400.0  # as Kafka's `producer.id.expiration.ms`
COUNTING_ROWS_MAX = 1_000_000

Blocks = Sequence[RememberedBlock]


class ForgottenPage(Struct, eq=False):
    """Rows of forgotten producers, each a block, by id and time. `name` is its name in the store,
    empty until it is stored."""

    ids: "array[int]"
    rows: bytes
    closed_s: float
    name: str = ""

    def of(self, first_id: int, last_id: int) -> Iterator[tuple[int, RememberedBlock]]:
        """The blocks of the producers with ids from the first to the last, each with its id."""
        at = bisect_left(self.ids, first_id)
        for row in range(at, bisect_right(self.ids, last_id, at)):
            id, time_ms, base_offset, number, crc, count, sequence = FORGOTTEN_ROW.unpack_from(
                self.rows, row * FORGOTTEN_ROW.size
            )
            yield id, RememberedBlock(number, crc, time_ms, sequence, count, base_offset)


class PagesToStore(NamedTuple):
    """The changes of the store that go with a snapshot: pages to write before it, the names of all
    pages, and the names of pages to delete after it."""

    new: list[tuple[str, bytes]]
    names: tuple[str, ...]
    gone: list[str]


class Bounds(NamedTuple):
    """The bounds of the producers of a kind: how many a window has, and of how many blocks each;
    the time for which forgotten ones are remembered, and the number of rows from which on that is
    `REMEMBERED_S` only. Ids that differ in their lowest `epoch_bits` are epochs of one producer.
    Names of pages begin with `prefix`."""

    producers_max: int
    blocks_max: int
    remembered_s: float
    rows_max: int
    epoch_bits: int = 0
    prefix: str = ""


_bounds = cache(Bounds)  # one object for all partitions


class ForgottenProducers:
    """The producers that were pushed out of their windows. Not thread-safe."""

    __slots__ = ("_gone", "_named", "_now_s", "_open", "_pages", "bounds", "recalled", "rows")

    def __init__(self, monotonic_s: Callable[[], float], bounds: Bounds) -> None:
        self._now_s = monotonic_s
        self.bounds = bounds
        self.recalled: dict[int, RememberedBlock] = {}  # of those that are back: the newest row
        self._pages: list[ForgottenPage] = []  # in the order in which they were closed
        self._open: dict[int, tuple[int, Blocks]] = {}  # id and blocks, by id without its epoch
        self.rows = 0  # of all pages, and those of no page yet
        self._gone: list[str] = []  # names of stored pages to delete
        self._named = 0

    def add(self, producer_id: int, blocks: Blocks) -> None:
        """Add a producer's blocks, except those that are present. Those of its earlier epochs no
        longer count."""
        producer = producer_id >> self.bounds.epoch_bits
        known_id, known = self._open.get(producer, (producer_id, ()))
        before = known if known_id == producer_id else ()
        self._open[producer] = producer_id, (*before, *blocks)
        self.rows += len(blocks) + len(before) - len(known)
        if len(self._open) >= PAGE_PRODUCERS:
            self._close_page()

    def find(self, producer_id: int) -> tuple[int, list[RememberedBlock]]:
        """The newest epoch of a producer, as an id, and its blocks, in order. There are none if
        nothing is known of the producer."""
        if not self.rows:
            return producer_id, []
        bits = self.bounds.epoch_bits
        producer = producer_id >> bits
        known_id, blocks = self._open.get(producer, (0, ()))
        known = {(known_id, block) for block in blocks}
        for page in self._pages:
            known.update(page.of(producer << bits, (producer + 1 << bits) - 1))
        newest = max((id for id, _ in known), default=producer_id)
        return newest, sorted((block for id, block in known if id == newest), key=_place)

    def is_full(self) -> bool:
        """True if there is no room for another row."""
        if self.rows >= self.bounds.rows_max:
            self._drop_old()
        return self.rows >= self.bounds.rows_max

    def trim(self) -> None:
        """Drop the oldest pages beyond the bound."""
        while self.rows > self.bounds.rows_max and self._pages:
            self._drop_first()

    def load(self, pages: Iterable[tuple[str, bytes]], unused: Iterable[str]) -> None:
        """Replace everything with stored pages; `unused` are names of other pages, which can be
        deleted."""
        now_s = self._now_s()
        self._pages = [_page(rows, now_s, name) for name, rows in pages]
        self._open = {}
        self.recalled.clear()
        self.rows = sum(len(page.ids) for page in self._pages)
        self._gone = [*unused]
        numbers = (int(name.rpartition("-")[2], 16) for page in self._pages if (name := page.name))
        self._named = max(numbers, default=-1) + 1

    def to_store(self, epoch: int) -> PagesToStore:
        """The pages for a snapshot that the owner with this epoch takes now."""
        self._drop_old()
        if self._open:
            self._close_page()
        new: list[tuple[str, bytes]] = []
        for page in self._pages:
            if not page.name:
                page.name = f"{self.bounds.prefix}{epoch:08x}-{self._named:08x}"
                self._named += 1
                new.append((page.name, page.rows))
        return PagesToStore(new, tuple(page.name for page in self._pages), self._gone)

    def stored(self) -> None:
        """Confirm that the snapshot is stored and that the pages `to_store` gave as gone are
        deleted."""
        self._gone = []

    def _close_page(self) -> None:
        rows = [_row(id, block) for id, blocks in self._open.values() for block in blocks]
        self._open.clear()
        if self._pages and len(self._pages[-1].ids) + len(rows) < PAGE_PRODUCERS:
            last = self._pages.pop()
            rows += _split(last.rows)
            self._forget_name(last)
        rows.sort()  # by id, then by time and offset
        self._pages.append(_page(b"".join(rows), self._now_s()))

    def _drop_old(self) -> None:
        now_s = self._now_s()
        while self._pages:
            full = self.rows >= self.bounds.rows_max
            remembered_s = REMEMBERED_S if full else self.bounds.remembered_s
            if self._pages[0].closed_s > now_s - remembered_s:
                return
            self._drop_first()

    def _drop_first(self) -> None:
        page = self._pages.pop(0)
        self.rows -= len(page.ids)
        self._forget_name(page)

    def _forget_name(self, page: ForgottenPage) -> None:
        if page.name:
            self._gone.append(page.name)


class _Blocks(deque[RememberedBlock]):
    """The newest blocks of a producer, under the newest of its epochs, which `producer_id` has."""

    __slots__ = ("producer_id",)
    producer_id: int


class _Recent:
    """The producers of a kind that published last, longest silent first, by id without epoch."""

    __slots__ = ("blocks", "forgotten")

    def __init__(self, forgotten: ForgottenProducers) -> None:
        self.blocks: OrderedDict[int, _Blocks] = OrderedDict()
        self.forgotten = forgotten

    def of(self, producer_id: int) -> _Blocks | None:
        """The blocks of a producer, None if it is not in the window."""
        return self.blocks.get(producer_id >> self.forgotten.bounds.epoch_bits)

    def find(self, producer_id: int) -> _Blocks | None:
        """The blocks of a producer, None if nothing is known of it. Raises `Overloaded`."""
        blocks = self.of(producer_id)
        if blocks is not None:
            return blocks
        if self.forgotten.is_full():
            raise Overloaded(
                f"The partition remembers {self.forgotten.rows:,} blocks of producers and "
                f"idempotency keys of the last {REMEMBERED_S / 60:g} minutes, which is its limit. "
                "Use fewer producers, or keys for those publishes only that may be repeated.",
                retry_after_s=1,
            )
        return self.recall(producer_id)

    def recall(self, producer_id: int) -> _Blocks | None:
        """Take a forgotten producer back into the window."""
        newest, found = self.forgotten.find(producer_id)
        if not found:
            return None
        self.forgotten.recalled[producer_id >> self.forgotten.bounds.epoch_bits] = found[-1]
        return self.enter(newest, found)

    def enter(self, producer_id: int, blocks: Blocks) -> _Blocks:
        """Add a producer, and push another one out if there are too many."""
        bounds = self.forgotten.bounds
        entered = _Blocks(blocks, bounds.blocks_max)
        entered.producer_id = producer_id
        self.blocks[producer_id >> bounds.epoch_bits] = entered
        if len(self.blocks) > bounds.producers_max:
            silent, known = self.blocks.popitem(last=False)
            noted = self.forgotten.recalled.pop(silent, None)
            new = [block for block in known if noted is None or _place(block) > _place(noted)]
            if new:
                self.forgotten.add(known.producer_id, new)
        return entered

    def dump(self) -> dict[str, tuple[RememberedBlock, ...]]:
        """The blocks by id, longest silent producer first."""
        return {str(blocks.producer_id): tuple(blocks) for blocks in self.blocks.values()}


class ProducerWindow:
    """The remembered producers of one partition. Not thread-safe; the partition's committer owns
    it. Producers are forgotten by the time of `monotonic_s`."""

    __slots__ = ("_counting_or_none", "_keys_or_none", "_now_s", "_producers")

    def __init__(self, producers_max: int, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        bounds = _bounds(producers_max, BLOCKS_REMEMBERED, REMEMBERED_S, ROWS_MAX)
        forgotten = ForgottenProducers(monotonic_s, bounds)
        self._producers = _Recent(forgotten)
        self._keys_or_none: _Recent | None = None  # most partitions need none of these
        self._counting_or_none: _Recent | None = None

    def __len__(self) -> int:
        kinds = self._producers, self._keys_or_none, self._counting_or_none
        return sum(len(recent.blocks) for recent in kinds if recent is not None)

    @property
    def forgotten(self) -> tuple[ForgottenProducers, ...]:
        """The forgotten producers and keys, and the forgotten counting producers if there are
        any."""
        counting_or_none = self._counting_or_none
        if counting_or_none is None:
            return (self._producers.forgotten,)
        return self._producers.forgotten, counting_or_none.forgotten

    @property
    def _keys(self) -> _Recent:
        if self._keys_or_none is None:
            self._keys_or_none = _Recent(self._producers.forgotten)
        return self._keys_or_none

    @property
    def _counting(self) -> _Recent:
        if self._counting_or_none is None:
            bounds = _bounds(
                self._producers.forgotten.bounds.producers_max,
                counting.BLOCKS_MAX,
                COUNTING_S,
                COUNTING_ROWS_MAX,
                EPOCH_BITS,
                "m",
            )
            self._counting_or_none = _Recent(ForgottenProducers(self._now_s, bounds))
        return self._counting_or_none

    def newest(self, limit: int) -> list[tuple[int, bool, RememberedBlock]]:
        """Up to `limit` producers, keys and counting producers of each window, the one that
        published last first: the id, True if it counts messages, and its newest block."""
        kinds = self._producers, self._keys_or_none, self._counting_or_none
        found: list[tuple[int, bool, RememberedBlock]] = []
        for recent in kinds:
            if recent is not None:
                counts = recent is self._counting_or_none
                last = islice(reversed(recent.blocks.values()), limit)
                found += [(blocks.producer_id, counts, blocks[-1]) for blocks in last]
        return sorted(found, key=lambda one: one[2].time_ms, reverse=True)

    def counting(self) -> dict[int, RememberedBlock]:
        """The newest block of each counting producer in the window, by the id of its newest epoch,
        longest silent first."""
        if self._counting_or_none is None:
            return {}
        return {one.producer_id: one[-1] for one in self._counting_or_none.blocks.values()}

    def find(self, header: BlockHeader) -> RememberedBlock | None:
        """The stored block that `header` repeats, None if `header` is the producer's next one.

        Raises `OutOfOrderSequence` when blocks before it are missing, `SequenceReused` when its
        number was used for another block or so long ago that it is no longer known, `StaleEpoch`,
        `Overloaded`.
        """
        producer_id = header.producer_id
        if header.flags & Flags.COUNTS_MESSAGES:
            blocks = self._counting.find(producer_id)
            if blocks is None:  # it is new, or forgotten
                return None
            return counting.find_counted(header, blocks.producer_id, blocks)
        recent = self._keys if producer_id & KEY_BIT else self._producers
        blocks = recent.blocks.get(producer_id)
        if blocks is None:
            blocks = recent.find(producer_id)
            if blocks is None and producer_id & KEY_BIT:  # written by a release before `KEY_BIT`
                blocks = self._producers.blocks.get(producer_id ^ KEY_BIT)
        wanted = 0 if blocks is None else (blocks[-1].producer_sequence + 1) % SEQUENCE_LIMIT
        if header.producer_sequence == wanted:
            return None
        for block in blocks or ():
            if block.producer_sequence == header.producer_sequence:
                if (block.crc, block.count) != (header.crc, header.count):
                    raise SequenceReused(
                        f"Producer {header.producer_id} sent another block as sequence "
                        f"{header.producer_sequence}. Give each block its own sequence number.",
                        producer_sequence=header.producer_sequence,
                    )
                return block
        if blocks is not None and _is_older(header.producer_sequence, wanted):
            raise SequenceReused(
                f"Sequence {header.producer_sequence} of producer {header.producer_id} was stored "
                f"long ago; the next one is {wanted}.",
                expected=wanted,
            )
        raise OutOfOrderSequence(
            f"Producer {header.producer_id} sent sequence {header.producer_sequence} where "
            f"{wanted} is next. Send the missing block first, or use a new producer id from "
            "sequence 0 on.",
            expected=wanted,
        )

    def remember(self, header: BlockHeader, block: RememberedBlock) -> None:
        """Record a block that is being stored, of a producer that `find` has looked up."""
        producer_id = header.producer_id
        if header.flags & Flags.COUNTS_MESSAGES:
            self._remember_counted(producer_id, block)
            return
        recent = self._keys if producer_id & KEY_BIT else self._producers
        blocks = recent.blocks.get(producer_id)
        if blocks is None:
            blocks = recent.enter(producer_id, ())
        else:
            recent.blocks.move_to_end(producer_id)
        blocks.append(block)

    def replay(self, header: BlockHeader, block: RememberedBlock) -> None:
        """Record the next stored block while the log is read."""
        producer_id = header.producer_id
        if header.flags & Flags.COUNTS_MESSAGES:
            recent = self._counting
        else:
            recent = self._keys if producer_id & KEY_BIT else self._producers
        if recent.of(producer_id) is None:
            recent.recall(producer_id)
        self.remember(header, block)
        recent.forgotten.trim()

    def dump(self) -> dict[str, tuple[RememberedBlock, ...]]:
        """The windows of producers and keys, longest silent producer first."""
        keys = {} if self._keys_or_none is None else self._keys_or_none.dump()
        return {**self._producers.dump(), **keys}

    def dump_counting(self) -> dict[str, tuple[RememberedBlock, ...]]:
        """The window of counting producers, longest silent producer first."""
        return {} if self._counting_or_none is None else self._counting_or_none.dump()

    def load(self, snapshot: ProducersRecord | None, pages: Mapping[str, bytes]) -> None:
        """Replace everything with a snapshot. `pages` are all pages of the store; those that the
        snapshot does not name are to be deleted."""
        snapshot = snapshot or ProducersRecord(FIRST_KEY, 0, {}, 0)
        unused = pages.keys() - {*snapshot.pages, *snapshot.counting_pages}
        self._producers.forgotten.load(_named(snapshot.pages, pages), sorted(unused))
        self._producers.blocks.clear()
        self._keys_or_none = self._counting_or_none = None
        if snapshot.counting_pages:
            self._counting.forgotten.load(_named(snapshot.counting_pages, pages), ())
        for text, blocks in snapshot.producers.items():
            producer_id = int(text)
            recent = self._keys if producer_id & KEY_BIT else self._producers
            recent.enter(producer_id, blocks)
        for text, blocks in snapshot.counting.items():
            self._counting.enter(int(text), blocks)

    def _remember_counted(self, producer_id: int, block: RememberedBlock) -> None:
        recent = self._counting
        blocks = recent.of(producer_id)
        if blocks is None:
            blocks = recent.enter(producer_id, ())
        elif blocks.producer_id != producer_id:  # a new epoch begins
            blocks.clear()
            blocks.producer_id = producer_id
        recent.blocks.move_to_end(producer_id >> EPOCH_BITS)
        blocks.append(block)
        counting.trim(blocks)


def _named(names: Iterable[str], pages: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    return [(name, pages[name]) for name in names if name in pages]


def _page(rows: bytes, now_s: float, name: str = "") -> ForgottenPage:
    ids = array("Q", [row[0] for row in FORGOTTEN_ROW.iter_unpack(rows)])
    return ForgottenPage(ids, rows, now_s, name)


def _row(producer_id: int, block: RememberedBlock) -> bytes:
    return FORGOTTEN_ROW.pack(
        producer_id,
        block.time_ms,
        block.base_offset,
        block.producer_sequence,
        block.crc,
        block.count,
        block.sequence,
    )


def _split(rows: bytes) -> Iterator[bytes]:
    size = FORGOTTEN_ROW.size
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _place(block: RememberedBlock) -> tuple[int, int]:
    return block.time_ms, block.base_offset


def _is_older(sequence: int, wanted: int) -> bool:
    return (wanted - sequence) % SEQUENCE_LIMIT < SEQUENCE_LIMIT // 2
