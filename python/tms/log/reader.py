"""Fetching from one partition: positions to keys, the lower bound, cache before store.

Invariants

* Only published blocks are delivered, in key order, as they are stored.
* Nothing before the floor (truncation) or before now − retention is delivered, whatever the
  requested position.
* Only the end offset says where the partition ends: an empty page is not the end.
* If nothing was found, a read at the returned position waits for new messages only: `latest` is
  resolved once, and unreadable messages are stepped over.
* Reading at the tail takes no store access and waits for no writer.
* A reader by offset that goes on where it stopped takes no search: the offset behind a block and
  the key of the block's last message belong together for ever, also when the block is gone.
* The start of the readable messages is known in one place (`first`), which reads from the store
  only if the first message is gone.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from tms.block import Flags
from tms.block.placing import ids, places
from tms.errors import BadBlock, Closed, DataCorrupt, NotFound, OffsetOutOfRange, again
from tms.log.partition import PartitionState
from tms.log.records import FIRST_KEY, BlockKey, key_after, key_before
from tms.log.recovery import header_of
from tms.log.search import BlockPlace, place_of, search, start_key
from tms.log.staging import StagedBlocks, is_reference
from tms.log.trimming import trimmed
from tms.log.visibility import FateOf, visible_blocks
from tms.model.ids import MessageId
from tms.model.message import Holder, StoredBlock
from tms.model.position import Position, PositionKind

FRESH_MS = 10_000  # lag behind retention that numbers for operators may have
_LOOK_BYTES = 4 << 20
_FEW = 8  # references beyond those that filled the last read
ENDS_KEPT = 16  # of reads by offset: so many readers of a partition go on without a search


class Read(NamedTuple):
    """Result of reading one partition: its blocks, the next position, the offset `reached` before
    which everything was read, the offset after its last message, and the open transaction that the
    reader waits for. Messages before the key `start` were not requested. `roll_backs` of the
    partition had been made before."""

    blocks: list[StoredBlock]
    next: Position
    reached: int
    end: int
    start: BlockKey = FIRST_KEY
    held_by: Holder | None = None
    roll_backs: int = 0

    @property
    def ended(self) -> bool:
        """True if there was no message at or after `next`; blocks may be missing for other
        reasons."""
        return self.reached >= self.end


class ReadableStart(NamedTuple):
    """Offset and key of the first readable message; those after the last message if none is
    readable. Computed for the floor `since`, after `rewrites` rewrites of the partition."""

    offset: int
    key: BlockKey
    since: BlockKey
    rewrites: int


class PartitionReader:
    """Reads of one partition, from any thread."""

    def __init__(self, state: PartitionState, staged: StagedBlocks) -> None:
        self._state = state
        self._staged = staged
        self._decided = FIRST_KEY  # every message before it is
        self._first: ReadableStart | None = None
        self._references: int | None = None  # that fill a read; None: none were met yet
        self._read_to: dict[int, BlockKey] = {}  # offsets where reads ended; the keys before them

    def read_cached(self, position: Position, floor: BlockKey, bytes_max: int) -> Read | None:
        """Like `read`, without touching the store; None if that is not possible."""
        state = self._state
        if not state.known:
            return None
        by_offset = position.kind is PositionKind.OFFSET
        if by_offset:
            known = self._at_known_offset(position.number, floor)
            if known is None:
                return None
            position = known
        with state.lock:
            last, end = state.last, state.end_offset
            start = max(start_key(position, last), floor, state.chain.record.floor)
            if start > last:
                return Read([], _beyond(position, last), end, end)
            blocks = state.tail.read(start, bytes_max)
            roll_backs = state.roll_backs
        if blocks is None:
            return None
        found = self._found(blocks, position, start, last, end, roll_backs)
        if by_offset:
            self._note_end(found)
        return found

    def read(self, position: Position, floor: BlockKey, bytes_max: int) -> Read:
        """Blocks from `position` on, each with at least one message there. An empty page is the end
        only if `Read.ended`. Raises `OffsetOutOfRange` for offsets that are gone, or beyond the
        end."""
        state = self._state
        self.load()
        by_offset = position.kind is PositionKind.OFFSET
        if by_offset:
            known = self._at_known_offset(position.number, floor)
            position = known or self._at_offset(position.number, floor)
        found = self.read_cached(position, floor, bytes_max)
        if found is None:
            last, end = self._end()
            roll_backs = state.roll_backs
            start = max(start_key(position, last), floor, state.chain.record.floor)
            blocks = self._scan(start, key_after(last), bytes_max)
            found = self._found(blocks, position, start, last, end, roll_backs)
        if by_offset:
            self._note_end(found)
        return found

    def resolved(self, read: Read, bytes_max: int) -> Read:
        """Replace references by the staged blocks, as far as `bytes_max` reaches, but at least one
        block if one is left."""
        blocks_: list[StoredBlock] = []
        floor = self._state.chain.record.floor
        references = 0
        for stored in read.blocks:
            if bytes_max <= 0:
                self._references = references + _FEW
                last = blocks_[-1]
                reached = place_of(last).end_offset
                behind = _after(last)
                return read._replace(blocks=blocks_, next=behind, reached=reached, held_by=None)
            if is_reference(stored):
                references += 1
                payload = self._resolve(stored)
                if payload is None:
                    continue
                shown = trimmed([payload], floor, read.start)
                if not shown:
                    continue
                [stored] = shown
            blocks_.append(stored)
            bytes_max -= len(stored.block)
        if references:
            self._references = max(self._references or 0, 2 * references)
        return read._replace(blocks=blocks_)

    def _resolve(self, stored: StoredBlock) -> StoredBlock | None:
        """The staged block of a reference; None if that block is gone and so is the reference, or
        if it was rolled back."""
        try:
            return self._staged.resolve(stored)
        except DataCorrupt:
            key = (stored.time_ms, stored.last_sequence)
            rows = self._scan(key, key_after(key), 1)
            if rows and not header_of(rows[0]).flags & Flags.ROLLED_BACK:
                raise
            return None

    def skip(self, position: Position) -> Read:
        """The answer of `read` if no block had room: only `latest` is resolved."""
        self.load()
        last, end = self._end()
        if position.kind is PositionKind.LATEST:
            return Read([], Position.after(MessageId(*last)), end, end)
        return Read([], position, 0, end)

    def load(self) -> None:
        """Make sure that the partition's end is known."""
        state = self._state
        if not state.known:
            with state.owner:
                if not state.known:
                    state.load()

    def readable_from(self, floor: BlockKey) -> BlockKey:
        """The first readable key from `floor` on; at most the key after the last message."""
        self.load()
        with self._state.lock:
            return min(max(floor, self._state.chain.record.floor), key_after(self._state.last))

    def complete_from(self, floor: BlockKey) -> BlockKey:
        """The first key from which on every missing message has a newer one of its key. Before it,
        messages expired, were dropped, or were forgotten by compaction."""
        return max(self.readable_from(floor), self._state.chain.record.forgotten)

    def watch(self, position: Position, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when there is a message at or after `position`, at once if there is
        one now. Returns a function that cancels it."""
        last, end = self._end()
        if position.kind is not PositionKind.OFFSET:
            last = key_before(start_key(position, last))
        elif position.number < end:
            last = FIRST_KEY
        return self._state.watch(last, callback)

    def truncate(self, before: Position, now_ms: int) -> None:
        """Make everything before a position unreadable for good and drop whole segments."""
        state = self._state
        self.load()
        if before.kind is PositionKind.OFFSET:
            before = self._boundary(before.number)
        with state.changing():
            state.load()
            if not state.chain.record.segments:
                return
            floor = start_key(before, state.last)
            if state.chain.active is not None and state.chain.record.last < state.last < floor:
                state.roll(now_ms)
            state.raise_floor(floor)

    def start(self, floor: BlockKey) -> int:
        """The offset of the first readable message; the end if there is none. Where messages were
        compacted away, the offset from which on nothing else is missing."""
        return self.first(floor).offset

    def first(self, floor: BlockKey, fresh_ms: int = 0) -> ReadableStart:
        """The start of the readable messages. With `fresh_ms`, it may lag that much behind
        retention; a truncation counts at once."""
        begin = self.readable_from(floor)
        known = self._known_first(begin, fresh_ms)
        if known is not None:
            return known
        rewrites = self._state.rewrites  # read first: a rewrite meanwhile makes the result void
        self._first = first = ReadableStart(*self._find_first(begin), begin, rewrites)
        return first

    def _known_first(self, begin: BlockKey, fresh_ms: int = 0) -> ReadableStart | None:
        """The start of the messages that are readable from `begin` on, if it is known."""
        known = self._first
        state = self._state
        if known is None or known.rewrites != state.rewrites or known.since > begin:
            return None
        is_fresh = begin[0] - known.since[0] < fresh_ms and state.chain.record.floor <= known.key
        return known if begin <= known.key or is_fresh else None

    def _find_first(self, start: BlockKey) -> tuple[int, BlockKey]:
        last, end = self._end()
        blocks = self._scan(start, key_after(last), 1) if start <= last else []
        gaps = self._state.chain.record.gaps
        if not blocks:
            return self._behind(start) if gaps and start <= last else end, key_after(last)
        place = place_of(blocks[0])
        offset = place.offset_of(start)
        if gaps and start <= place.first:
            offset = min(offset, self._behind(start))
        return offset, max(start, place.first)

    def first_id(self, floor: BlockKey) -> MessageId | None:
        """The id of the first readable message; None if there is none."""
        last, _ = self._end()
        start = max(floor, self._state.chain.record.floor)
        while start <= last and (blocks := self._scan(start, key_after(last), 1)):
            (stored,) = blocks
            for _, id in self._places(stored):
                if id[:2] >= start:
                    return id
            start = key_after((stored.time_ms, stored.last_sequence))
        return None

    def _places(self, stored: StoredBlock) -> Iterable[tuple[int, MessageId]]:
        """Offsets and ids of a block's messages. A damaged block counts as complete; reading it
        reports the damage."""
        try:
            body = self._resolve(stored)
            return () if body is None else places(body)
        except (BadBlock, DataCorrupt):
            header = header_of(stored)
            return zip(count(header.base_offset), ids(stored, header, range(header.count)))

    def _behind(self, key: BlockKey) -> int:
        """The offset behind the last block before a key; the start of the first segment if there is
        none."""
        before = self._state.chain.before(key)
        if before is None:
            return self._state.chain.record.segments[0].base_offset
        return place_of(before).end_offset

    def offset_at(self, position: Position, floor: BlockKey) -> int:
        """The offset of the first readable message at or after a position; the end if there is
        none. An offset that is out of range becomes the nearer end."""
        self.load()
        last, end = self._end()
        if position.kind is PositionKind.OFFSET:
            return min(max(position.number, self.start(floor)), end)
        key = start_key(position, last)
        if key <= self.readable_from(floor):
            return self.start(floor)
        return self._find_first(key)[0]

    def decided_end(self, fate_of: FateOf, since_ms: int, floor: BlockKey) -> int:
        """The offset up to which every message is decided by `fate_of`, which never changes a
        decision. Messages published before `since_ms` count as decided."""
        self.load()
        last, end = self._end()
        start = max(self._decided, (max(0, since_ms), 0), floor, self._state.chain.record.floor)
        while start <= last and (
            blocks := self._state.tail.read(start, _LOOK_BYTES)
            or self._scan(start, key_after(last), _LOOK_BYTES)
        ):
            visible = visible_blocks(blocks, fate_of)
            if visible.stop is not None:
                start = start_key(visible.stop, last)
                end = visible.end_offset
                if start < self.readable_from(floor):  # a truncation cut its block
                    end = max(end, self.start(floor))
                break
            start = key_after((blocks[-1].time_ms, blocks[-1].last_sequence))
        self._decided = max(self._decided, min(start, key_after(last)))
        return end

    def _end(self) -> tuple[BlockKey, int]:
        state = self._state
        with state.lock:
            return state.last, state.end_offset

    def _scan(self, start: BlockKey, stop: BlockKey, bytes_max: int) -> list[StoredBlock]:
        try:
            return self._state.chain.scan(start, stop, bytes_max)
        except (Closed, NotFound) as exc:
            if self._state.retired is not None:
                raise again(self._state.retired) from exc
            raise

    def _found(
        self,
        blocks: list[StoredBlock],
        position: Position,
        start: BlockKey,
        last: BlockKey,
        end: int,
        roll_backs: int,
    ) -> Read:
        """The result of a page that was read from the key `start` on, of a partition that ended at
        `last`."""
        if not blocks:  # the last ones were cleaned away
            return Read([], _beyond(position, last), end, end)
        if self._references is not None:
            blocks = _with_few(blocks, self._references)
        newest = blocks[-1]
        ended = (newest.time_ms, newest.last_sequence) >= last
        reached = end if ended else place_of(newest).end_offset
        left = trimmed(blocks, self._state.chain.record.floor, start)
        behind = Position(PositionKind.AFTER, MessageId(newest.time_ms, newest.last_sequence))
        return Read(left, behind, reached, end, start, None, roll_backs)

    def _at_known_offset(self, offset: int, floor: BlockKey) -> Position | None:
        """The position of an offset at which a read ended, or the partition ends; None if it takes
        a search, or may be out of range."""
        last, end = self._end()
        if offset == end:
            return Position.after(MessageId(*last))
        key = self._read_to.get(offset)
        first = None if key is None else self._known_first(self.readable_from(floor))
        if key is None or first is None or offset < first.offset:
            return None
        return Position.after(MessageId(*key))

    def _note_end(self, read: Read) -> None:
        """Remember the end of a read by offset, where its reader goes on."""
        assert read.next.id is not None
        with self._state.lock:
            self._read_to.pop(read.reached, None)
            self._read_to[read.reached] = read.next.id[:2]
            if len(self._read_to) > ENDS_KEPT:
                del self._read_to[next(iter(self._read_to))]

    def _at_offset(self, offset: int, floor: BlockKey) -> Position:
        """The position of an offset. Raises `OffsetOutOfRange`."""
        last, end = self._end()
        if offset == end:
            return Position.after(MessageId(*last))
        try:
            earliest = self.start(floor)
        except DataCorrupt:  # the first block is damaged; those after it can be read
            earliest = self._behind(max(floor, self._state.chain.record.floor))
        if earliest <= offset < end:
            located = self._locate(offset, last, end)
            if located is not None:
                return Position.at(located)
            if self._state.chain.record.gaps:
                return Position.after(MessageId(*last))  # no message is left after it
        what = "is not there yet" if offset > end else "is no longer kept"
        raise OffsetOutOfRange(
            f"Offset {offset} of partition {self._state.chain.partition} {what}; the earliest is "
            f"{earliest}, the end {end}. Go on at `earliest`, `latest` or within these bounds.",
            earliest=earliest,
            end=end,
        )

    def _boundary(self, offset: int) -> Position:
        """The position of an offset or, if no message is left after it, of the present end, because
        messages published meanwhile come after it."""
        last, end = self._end()
        located = None if offset >= end else self._locate(offset, last, end)
        return Position.after(MessageId(*last)) if located is None else Position.at(located)

    def _locate(self, offset: int, last: BlockKey, end: int) -> MessageId | None:
        """The id at an offset or, where invisible messages were cleaned away, the next one. None if
        there is no next one. Raises `DataCorrupt` as `search` does."""
        place = search(self._first_block, FIRST_KEY, last, end, offset)
        return None if place is None else MessageId(*place.key_of(offset))

    def _first_block(self, low: BlockKey, high: BlockKey) -> BlockPlace | None:
        """The first block whose last message has a key from `low` to `high`."""
        blocks = self._scan(low, key_after(high), 1) if low <= high else []
        return place_of(blocks[0]) if blocks else None


def _with_few(blocks: list[StoredBlock], references: int) -> list[StoredBlock]:
    """The blocks before the reference with the index `references`. References are small: a read
    finds many more of them than its answer has room for the blocks that they name."""
    for at, stored in enumerate(blocks):
        if is_reference(stored):
            if references == 0:
                return blocks[:at]
            references -= 1
    return blocks


def _beyond(position: Position, last: BlockKey) -> Position:
    """The next position after a read that found nothing: after the end, or `position` if that lies
    beyond."""
    if position.kind is PositionKind.LATEST or start_key(position, last) <= last:
        return Position.after(MessageId(*last))
    return position


def _after(block: StoredBlock) -> Position:
    return Position.after(MessageId(block.time_ms, block.last_sequence))
