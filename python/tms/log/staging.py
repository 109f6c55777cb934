"""Staged blocks of transactions in a partition: invisible until references to them are committed.

    stage ─▶ payload map                       pointer 8 · time 8 · last sequence 2  →  the block
    refer ─▶ a block in the log whose body is the key of one of them, without the pointer

A reference has the count of the block that it names, so ids and offsets are dense, and readers get
the staged block in its place. Payload maps are named by the day in which their transactions began,
so they are dropped whole.

Invariants

* Staged blocks are synced, because the commit that refers to them may be.
* Time and sequence of staged blocks grow within a transaction; a repeated block, by producer id and
  sequence, is stored once.
* A reference is written after the block that it names, and dropped before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import structs

from tms.block import BlockHeader, Flags, flags_of, place
from tms.block.header import HEADER_BYTES, write_header
from tms.errors import DataCorrupt, NotFound, TMSError
from tms.log.maps import MapStore
from tms.log.recovery import header_of
from tms.model import keys
from tms.model.ids import SEQUENCES_PER_MS
from tms.model.message import Buffer, Staged, StoredBlock
from tms.model.topic import Durability
from tms.store.base import Map, MapRow, pages

TRANSACTIONS_KNOWN = 10_000
SCAN_BYTES = 4 << 20


class _Known:
    """The blocks that a transaction has staged in a partition, in order."""

    __slots__ = ("_numbers", "blocks")

    def __init__(self) -> None:
        self.blocks: list[Staged] = []
        self._numbers: set[tuple[int, int]] = set()  # producer ids and sequences

    def add(self, header: BlockHeader, now_ms: int) -> Staged | None:
        """Assign the next block its key; None if it is staged already."""
        if (header.producer_id, header.producer_sequence) in self._numbers:
            return None
        time_ms, last = self.blocks[-1][:2] if self.blocks else (0, 0)
        if now_ms > time_ms:
            time_ms, last = now_ms, -1
        elif last + header.count >= SEQUENCES_PER_MS:
            time_ms, last = time_ms + 1, -1
        return self.note(_staged(time_ms, last + header.count, header))

    def note(self, staged: Staged) -> Staged:
        """Record a stored block."""
        self.blocks.append(staged)
        if staged.producer_id:
            self._numbers.add((staged.producer_id, staged.producer_sequence))
        return staged


class StagedBlocks:
    """The staged blocks of one partition. Thread-safe."""

    __slots__ = ("_failed", "_known", "_lock", "_maps", "_partition", "_store", "_uid")

    def __init__(self, store: MapStore, uid: int, partition: int) -> None:
        self._store = store
        self._uid = uid
        self._partition = partition
        self._lock = threading.Lock()
        self._maps: dict[str, Map] = {}
        self._failed: tuple[str, ...] = ()
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def add(
        self,
        blocks: Sequence[tuple[Buffer, BlockHeader]],
        pointer: int,
        now_ms: int,
        flags: int = Flags.TRANSACTIONAL,
    ) -> None:
        """Store checked blocks of a transaction, synced. `flags` say who issued the pointer."""
        name = keys.payload_map(self._uid, self._partition, pointer)
        with self._lock:
            self._recover(name)  # after it the stored rows do not change any more
            known, rows = self._of(pointer), []
            self._known.pop(pointer, None)  # until the write has succeeded
            for block, header in blocks:
                staged = known.add(header, now_ms)
                if staged is None:
                    continue
                copy = bytearray(block)
                counts = header.flags & Flags.COUNTS_MESSAGES
                place(copy, 0, flags | Flags.STAGED | counts, pointer)
                rows.append((keys.payload_key(pointer, *staged[:2]), copy))
            self._write(name, rows)
            self._remember(pointer, known)

    def of(self, pointer: int) -> list[Staged]:
        """The blocks that a transaction has staged, in order."""
        with self._lock:
            return list(self._of(pointer).blocks)

    def resolve(self, reference: StoredBlock) -> StoredBlock:
        """The block that a reference names, in its place; any other block as it is. Raises
        `DataCorrupt`."""
        if not is_reference(reference):
            return reference
        header = header_of(reference)
        time_ms, last = keys.split_block_key(bytes(reference.block[HEADER_BYTES:]))
        name = keys.payload_map(self._uid, self._partition, header.write_pointer)
        key = keys.payload_key(header.write_pointer, time_ms, last)
        with self._lock:
            map_ = self._map(name)
        value = None if map_ is None else map_.get(key)
        if value is None:
            raise DataCorrupt(
                f"The block at {reference.time_ms}:{reference.last_sequence} of partition "
                f"{self._partition} was staged, but {name} does not have it. Run `tms fsck`."
            )
        block = bytearray(value)
        own = flags_of(value) & (Flags.SPARSE | Flags.COUNTS_MESSAGES)
        place(block, header.base_offset, header.flags | own, header.write_pointer)
        return structs.replace(reference, block=block, payload=(time_ms, last - header.count + 1))

    def map_of(self, stored: StoredBlock) -> str:
        """The name of the map that holds a staged block."""
        pointer = header_of(stored).write_pointer
        return keys.payload_map(self._uid, self._partition, pointer)

    def rewrite(self, thinned: Sequence[StoredBlock], gone: Sequence[StoredBlock]) -> None:
        """Replace staged blocks by thinned ones, and remove others; their payloads are their keys.
        Missing blocks are left out."""
        changes: dict[str, tuple[list[MapRow], list[bytes]]] = {}
        for stays, blocks in ((True, thinned), (False, gone)):
            for stored in blocks:
                header = header_of(stored)
                time_ms, first = stored.payload
                pointer = header.write_pointer
                key = keys.payload_key(pointer, time_ms, first + header.count - 1)
                rows, keys_gone = changes.setdefault(self.map_of(stored), ([], []))
                if stays:
                    rows.append((key, stored.block))
                else:
                    keys_gone.append(key)
        with self._lock:
            for name, (rows, keys_gone) in changes.items():
                map_ = self._map(name)
                if map_ is not None:
                    map_.recover()
                    if rows:
                        map_.overwrite(rows, Durability.SYNCED)
                    map_.delete(keys_gone)
            self._known.clear()

    def reclaim(self, name: str, pause: Callable[[], None]) -> None:
        """Reclaim the space of removed rows in a map of the topic; does nothing if the map was
        dropped."""
        try:
            map_ = self._store.open(name, create=False)
        except NotFound:
            return
        map_.recover()
        map_.reclaim(pause)

    def drop(self, pointer: int, blocks: Sequence[Staged] | None = None) -> None:
        """Remove the staged blocks of a transaction that never commits, or these ones of them."""
        with self._lock:
            staged = self._of(pointer).blocks if blocks is None else blocks
            map_ = self._map(keys.payload_map(self._uid, self._partition, pointer))
            if map_ is not None and staged:
                map_.delete([keys.payload_key(pointer, *block[:2]) for block in staged])
            self._known.pop(pointer, None)

    def drop_before(self, bound: str) -> int:
        """Drop the payload maps whose names sort before `bound`; returns their number."""
        prefix = keys.payload_prefix(self._uid, self._partition)
        gone = [name for name in self._store.names(prefix) if name < bound]
        for name in gone:
            with self._lock:
                self._maps.pop(name, None)
                self._known.clear()
            self._store.drop(name)
        return len(gone)

    def _of(self, pointer: int) -> "_Known":
        known = self._known.get(pointer)
        if known is not None:
            self._known.move_to_end(pointer)
            return known
        known = _Known()
        map_ = self._map(keys.payload_map(self._uid, self._partition, pointer))
        start = keys.payload_key(pointer, 0, 0)
        stop = keys.payload_key(pointer + 1, 0, 0)
        for page in () if map_ is None else pages(map_, start, stop, SCAN_BYTES):
            for key, value in page:
                _, time_ms, last = keys.split_payload_key(key)
                header = header_of(StoredBlock(self._partition, time_ms, last, value))
                known.note(_staged(time_ms, last, header))
        self._remember(pointer, known)
        return known

    def _remember(self, pointer: int, known: "_Known") -> None:
        self._known[pointer] = known
        if len(self._known) > TRANSACTIONS_KNOWN:
            self._known.popitem(last=False)

    def _map(self, name: str) -> Map | None:
        map_ = self._maps.get(name)
        if map_ is None:
            try:
                map_ = self._maps[name] = self._store.open(name, create=False)
            except NotFound:
                return None
        return map_

    def _recover(self, name: str) -> None:
        if name in self._failed:
            map_ = self._map(name)
            if map_ is not None:
                map_.recover()
            self._failed = tuple(other for other in self._failed if other != name)

    def _write(self, name: str, rows: list[tuple[bytes, bytearray]]) -> None:
        map_ = self._map(name)
        if map_ is None:
            map_ = self._maps[name] = self._store.open(name, create=True)
        try:
            map_.write(rows, Durability.SYNCED)
        except TMSError:
            self._failed = (*self._failed, name)
            raise


def reference_to(staged: Staged) -> bytearray:
    """The block that stands for a staged one in the log."""
    block = bytearray(HEADER_BYTES) + keys.block_key(staged.time_ms, staged.last_sequence)
    write_header(block, staged.count, 0, 0)
    return block


def named_by(reference: StoredBlock) -> StoredBlock:
    """The reference itself, with the key of the named block as payload."""
    time_ms, last = keys.split_block_key(bytes(reference.block[HEADER_BYTES:]))
    return structs.replace(reference, payload=(time_ms, last - header_of(reference).count + 1))


def is_reference(stored: StoredBlock) -> bool:
    """True if a block of the log is a reference: its messages are in a staged block."""
    return bool(flags_of(stored.block) & Flags.STAGED) and stored.payload == (0, 0)


def _staged(time_ms: int, last: int, header: BlockHeader) -> Staged:
    return Staged(time_ms, last, header.count, header.producer_id, header.producer_sequence)
