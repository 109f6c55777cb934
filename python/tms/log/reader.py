"""Fetching from one partition: positions to keys, the lower bound, cache before store.

Invariants

* Only published blocks are delivered, in key order, as they are stored.
* Nothing before the floor (truncation) or before now − retention is delivered, whatever position
  was asked for.
* Reading at the tail takes no store access and waits for no writer.
"""

from collections.abc import Callable
from typing import NamedTuple

from tms.errors import OffsetOutOfRange
from tms.log.partition import PartitionState
from tms.log.records import FIRST_KEY, BlockKey, key_after
from tms.log.recovery import header_of
from tms.model.ids import MessageId
from tms.model.log import StoredBlock
from tms.model.position import Kind, Position


class Read(NamedTuple):
    """What one partition had: its blocks, where to go on, and the offset after its last message."""

    blocks: list[StoredBlock]
    next: Position
    end: int


class PartitionReader:
    """Reads of one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def read_cached(self, position: Position, floor: BlockKey, bytes_max: int) -> Read | None:
        """Like `read`, without touching the store; None when that is not possible."""
        state = self._state
        if not state.known or position.kind is Kind.OFFSET:
            return None
        with state.lock:
            last, end = state.last, state.end_offset
            start = max(_start(position, last), floor, state.chain.record.floor)
            if start > last:
                return Read([], _unchanged(position, last), end)
            blocks = state.tail.read(start, bytes_max)
        return None if blocks is None else Read(blocks, _after(blocks[-1]), end)

    def read(self, position: Position, floor: BlockKey, bytes_max: int) -> Read:
        """Blocks from `position` on, at least one if there is one. Raises `OffsetOutOfRange` for
        offsets that are gone."""
        state = self._state
        self.load()
        if position.kind is Kind.OFFSET:
            located = self._at_offset(position.number, floor)
            if located is None:
                return Read([], position, state.end_offset)
            position = located
        cached = self.read_cached(position, floor, bytes_max)
        if cached is not None:
            return cached
        with state.lock:
            last, end = state.last, state.end_offset
        start = max(_start(position, last), floor, state.chain.record.floor)
        blocks = state.chain.scan(start, key_after(last), bytes_max)
        if not blocks:
            return Read([], _unchanged(position, last), end)
        return Read(blocks, _after(blocks[-1]), end)

    def load(self) -> None:
        """Make the partition's end known."""
        state = self._state
        if not state.known:
            with state.owner:
                if not state.known:
                    state.load()

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self._state.end_offset

    def watch(self, position: Position, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when something is there at or after `position`, at once if it is.
        Returns a cancel."""
        state = self._state
        if position.kind is Kind.OFFSET:
            return state.watch(state.last, callback)
        return state.watch(_before(_start(position, state.last)), callback)

    def truncate(self, before: Position, now_ms: int) -> None:
        """Make everything before a position unreadable for good and free whole segments."""
        state = self._state
        self.load()
        if before.kind is Kind.OFFSET:
            located = self._at_offset(before.number, FIRST_KEY)
            before = Position.latest() if located is None else located
        with state.owner:
            state.load()
            floor = min(_start(before, state.last), key_after(state.last))
            if state.chain.active is not None and state.chain.record.last < state.last < floor:
                state.roll(now_ms)
            state.chain.raise_floor(floor)

    def start(self, floor: BlockKey) -> tuple[int, MessageId | None]:
        """Offset and id of the first readable message; the end and None when there is none."""
        state = self._state
        start = max(floor, state.chain.record.floor)
        blocks = state.chain.scan(start, key_after(state.last), 1) if start <= state.last else []
        if not blocks:
            return state.end_offset, None
        header = header_of(blocks[0])
        first = blocks[0].last_sequence - header.count + 1
        skipped = max(0, start[1] - first) if start[0] == blocks[0].time_ms else 0
        return header.base_offset + skipped, MessageId(blocks[0].time_ms, first + skipped)

    def _at_offset(self, offset: int, floor: BlockKey) -> Position | None:
        """The id at an offset; None when the offset is not used yet."""
        state = self._state
        if offset > state.end_offset:
            return None
        if offset == state.end_offset:
            return Position.after(MessageId(*state.last))
        earliest, _ = self.start(floor)
        if offset < earliest:
            raise OffsetOutOfRange(
                f"Offset {offset} of partition {state.chain.partition} is no longer kept; the "
                f"earliest is {earliest}, the end {state.end_offset}. Go on at `earliest` or "
                "within these bounds.",
                earliest=earliest,
                end=state.end_offset,
            )
        return Position.at(self._locate(offset, max(floor, state.chain.record.floor)))

    def _locate(self, offset: int, low: BlockKey) -> MessageId:
        """Halve the space of keys: offsets grow with keys."""
        state = self._state
        low_number, high_number = _number(low), _number(state.last)
        while low_number <= high_number:
            middle = (low_number + high_number) // 2
            block = state.chain.scan(_key(middle), key_after(state.last), 1)[0]
            header = header_of(block)
            if offset < header.base_offset:
                high_number = middle - 1
            elif offset >= header.base_offset + header.count:
                low_number = _number((block.time_ms, block.last_sequence)) + 1
            else:
                first = block.last_sequence - header.count + 1
                return MessageId(block.time_ms, first + offset - header.base_offset)
        raise OffsetOutOfRange(
            f"Offset {offset} of partition {state.chain.partition} was lost with a power failure: "
            "it was never acknowledged as synced. Go on at the next offset.",
            end=state.end_offset,
        )


def _start(position: Position, last: BlockKey) -> BlockKey:
    if position.id is not None:
        key = (position.id.time_ms, position.id.sequence)
        return key_after(key) if position.kind is Kind.AFTER else key
    if position.kind is Kind.TIME:
        return (position.number, 0)
    return key_after(last) if position.kind is Kind.LATEST else (0, 0)


def _unchanged(position: Position, last: BlockKey) -> Position:
    """Where to go on when nothing was there: `latest` and `earliest` become a place."""
    if position.kind in (Kind.LATEST, Kind.EARLIEST):
        return Position.after(MessageId(*last))
    return position


def _after(block: StoredBlock) -> Position:
    return Position.after(MessageId(block.time_ms, block.last_sequence))


def _before(key: BlockKey) -> BlockKey:
    """The greatest key smaller than this one."""
    return _key(max(0, _number(key) - 1))


def _number(key: BlockKey) -> int:
    return key[0] << 16 | key[1]


def _key(number: int) -> BlockKey:
    return (number >> 16, number & 0xFFFF)
