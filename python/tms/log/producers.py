"""The blocks that a partition has stored of each producer, so that a repeated block is recognised
(pure state).

    window of producers ─┐ the longest silent one
    window of keys ──────┴─▶ forgotten producers: pages of rows ─▶ dropped after `REMEMBERED_S`

An idempotency key is a producer of one block whose id has the bit `KEY_BIT`.

Invariants

* A producer's blocks are stored in the order of its sequence numbers, without gaps and once each.
* The newest `BLOCKS_REMEMBERED` blocks of each producer are known exactly: a repetition gets the
  ids of the first one.
* A window holds `producers_max` producers, however long they are silent. Producers do not push keys
  out of their window, nor keys producers.
* A producer that was pushed out is remembered for `REMEMBERED_S` more of the time in which the
  partition is open, also after a restart and by the next owner: its rows are in the snapshot of the
  producers or follow from the blocks after it. When it publishes again it is back in its window.
* Memory is bounded: beyond `ROWS_MAX` rows a producer that is in no window is refused with
  `Overloaded`, because it might be one that would have to be forgotten too early.
* After that time a producer that publishes again is refused with `OutOfOrderSequence` and continues
  under a new id.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from tms.block import BlockHeader
from tms.errors import OutOfOrderSequence, Overloaded, SequenceReused
from tms.log.records import FORGOTTEN_ROW, RememberedBlock
from tms.model.message import KEY_BIT

BLOCKS_REMEMBERED = 8
SEQUENCE_LIMIT = 1 << 32
REMEMBERED_S = 900.0  # of a producer that was pushed out of its window
PAGE_PRODUCERS = 8_192
ROWS_MAX = 4_000_000  # of about 46 bytes

Blocks = Sequence[RememberedBlock]


class ForgottenPage(Struct, eq=False):
    """Rows of forgotten producers, each a block, by id and time. `name` is its name in the store,
    empty until it is stored."""

    ids: "array[int]"
    rows: bytes
    closed_s: float
    name: str = ""

    def of(self, producer_id: int) -> Iterator[RememberedBlock]:
        """The blocks of a producer."""
        at = bisect_left(self.ids, producer_id)
        for row in range(at, bisect_right(self.ids, producer_id, at)):
            _, time_ms, base_offset, number, crc, count, sequence = FORGOTTEN_ROW.unpack_from(
                self.rows, row * FORGOTTEN_ROW.size
            )
            yield RememberedBlock(number, crc, time_ms, sequence, count, base_offset)


class PagesToStore(NamedTuple):
    """The changes of the store that go with a snapshot: pages to write before it, the names of all
    pages, and the names of pages to delete after it."""

    new: list[tuple[str, bytes]]
    names: tuple[str, ...]
    gone: list[str]


class ForgottenProducers:
    """The producers that were pushed out of their windows. Not thread-safe."""

    __slots__ = ("_gone", "_named", "_now_s", "_open", "_pages", "_rows")

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._pages: list[ForgottenPage] = []  # in the order in which they were closed
        self._open: dict[int, Blocks] = {}
        self._rows = 0
        self._gone: list[str] = []  # names of stored pages to delete
        self._named = 0

    def add(self, producer_id: int, blocks: Blocks) -> None:
        """Add a producer's blocks, except those that are present."""
        self._open[producer_id] = (*self._open.get(producer_id, ()), *blocks)
        self._rows += len(blocks)
        if len(self._open) >= PAGE_PRODUCERS:
            self._close_page()

    def find(self, producer_id: int) -> list[RememberedBlock]:
        """The newest blocks of a producer, in order."""
        if not self._rows:
            return []
        known = {*self._open.get(producer_id, ())}
        for page in self._pages:
            known.update(page.of(producer_id))
        return sorted(known, key=_place)[-BLOCKS_REMEMBERED:]

    def is_full(self) -> bool:
        """True if there is no room for another row."""
        if self._rows >= ROWS_MAX:
            self._drop_old()
        return self._rows >= ROWS_MAX

    def trim(self) -> None:
        """Drop the oldest pages beyond the bound."""
        while self._rows > ROWS_MAX and self._pages:
            self._drop_first()

    def load(self, pages: Iterable[tuple[str, bytes]], unused: Iterable[str]) -> None:
        """Replace everything with stored pages; `unused` are names of other pages, which can be
        deleted."""
        now_s = self._now_s()
        self._pages = [_page(rows, now_s, name) for name, rows in pages]
        self._open = {}
        self._rows = sum(len(page.ids) for page in self._pages)
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
                page.name = f"{epoch:08x}-{self._named:08x}"
                self._named += 1
                new.append((page.name, page.rows))
        return PagesToStore(new, tuple(page.name for page in self._pages), self._gone)

    def stored(self) -> None:
        """Confirm that the snapshot is stored and that the pages `to_store` gave as gone are
        deleted."""
        self._gone = []

    def _close_page(self) -> None:
        rows = [_row(number, block) for number, blocks in self._open.items() for block in blocks]
        self._open.clear()
        if self._pages and len(self._pages[-1].ids) + len(rows) < PAGE_PRODUCERS:
            last = self._pages.pop()
            rows += _split(last.rows)
            self._forget_name(last)
        rows.sort()  # by id, then by time and offset
        self._pages.append(_page(b"".join(rows), self._now_s()))

    def _drop_old(self) -> None:
        until_s = self._now_s() - REMEMBERED_S
        while self._pages and self._pages[0].closed_s <= until_s:
            self._drop_first()

    def _drop_first(self) -> None:
        page = self._pages.pop(0)
        self._rows -= len(page.ids)
        self._forget_name(page)

    def _forget_name(self, page: ForgottenPage) -> None:
        if page.name:
            self._gone.append(page.name)


class ProducerWindow:
    """The remembered producers of one partition. Not thread-safe; the partition's committer owns
    it. Producers are forgotten by the time of `monotonic_s`."""

    __slots__ = ("_keys", "_max", "_producers", "_recalled", "forgotten")

    def __init__(self, producers_max: int, monotonic_s: Callable[[], float]) -> None:
        self._max = producers_max
        self._producers: OrderedDict[int, deque[RememberedBlock]] = OrderedDict()
        self._keys: OrderedDict[int, deque[RememberedBlock]] = OrderedDict()
        self._recalled: dict[int, RememberedBlock] = {}  # the newest block that has a row
        self.forgotten = ForgottenProducers(monotonic_s)

    def __len__(self) -> int:
        return len(self._producers) + len(self._keys)

    def find(self, header: BlockHeader) -> RememberedBlock | None:
        """The stored block that `header` repeats, None if `header` is the producer's next one.

        Raises `OutOfOrderSequence` when blocks before it are missing, `SequenceReused` when its
        number was used for another block or so long ago that it is no longer known, `Overloaded`.
        """
        producer_id = header.producer_id
        blocks = (self._keys if producer_id & KEY_BIT else self._producers).get(producer_id)
        if blocks is None:
            blocks = self._find_elsewhere(producer_id)
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

    def remember(self, producer_id: int, block: RememberedBlock) -> None:
        """Record a block that is being stored, of a producer that `find` has looked up."""
        window = self._keys if producer_id & KEY_BIT else self._producers
        blocks = window.get(producer_id)
        if blocks is None:
            blocks = self._enter(producer_id, ())
        else:
            window.move_to_end(producer_id)
        blocks.append(block)

    def replay(self, producer_id: int, block: RememberedBlock) -> None:
        """Record the next stored block while the log is read."""
        if producer_id not in (self._keys if producer_id & KEY_BIT else self._producers):
            self._recall(producer_id)
        self.remember(producer_id, block)
        self.forgotten.trim()

    def dump(self) -> dict[str, tuple[RememberedBlock, ...]]:
        """The windows, longest silent producer first."""
        windows = (*self._producers.items(), *self._keys.items())
        return {str(producer): tuple(blocks) for producer, blocks in windows}

    def load(
        self,
        producers: dict[str, tuple[RememberedBlock, ...]],
        pages: Iterable[tuple[str, bytes]] = (),
        unused: Iterable[str] = (),
    ) -> None:
        """Replace everything with dumped windows and stored pages."""
        self._producers.clear()
        self._keys.clear()
        self._recalled.clear()
        self.forgotten.load(pages, unused)
        for producer, blocks in producers.items():
            self._enter(int(producer), blocks)

    def _find_elsewhere(self, producer_id: int) -> deque[RememberedBlock] | None:
        """The blocks of a producer that is in no window."""
        if self.forgotten.is_full():
            raise Overloaded(
                f"The partition remembers {ROWS_MAX:,} blocks of producers and idempotency keys of "
                f"the last {REMEMBERED_S / 60:g} minutes, which is its limit. Use fewer producers, "
                "or keys for those publishes only that may be repeated.",
                retry_after_s=1,
            )
        blocks = self._recall(producer_id)
        if blocks is None and producer_id & KEY_BIT:  # written by a release before `KEY_BIT`
            return self._producers.get(producer_id ^ KEY_BIT)
        return blocks

    def _recall(self, producer_id: int) -> deque[RememberedBlock] | None:
        """Take a forgotten producer back into its window."""
        found = self.forgotten.find(producer_id)
        if not found:
            return None
        self._recalled[producer_id] = found[-1]
        return self._enter(producer_id, found)

    def _enter(self, producer_id: int, blocks: Blocks) -> deque[RememberedBlock]:
        window = self._keys if producer_id & KEY_BIT else self._producers
        entered = window[producer_id] = deque(blocks, maxlen=BLOCKS_REMEMBERED)
        if len(window) > self._max:
            silent, known = window.popitem(last=False)
            noted = self._recalled.pop(silent, None)
            new = [block for block in known if noted is None or _place(block) > _place(noted)]
            if new:
                self.forgotten.add(silent, new)
        return entered


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
