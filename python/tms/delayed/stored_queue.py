"""The map of one topic's delayed messages, and its owner.

Invariants

* After a failure, and at the start, ownership is taken, then everything is read from the store
  again, and entries that were moved but not deleted are deleted. Requests of a store without other
  writers are read when they are needed.
* Entries of earlier moves are deleted before the next move is committed, so one position suffices.
* A request is durable before its entries are moved: a repetition of messages in the log is never
  stored again.
* A load takes the position first, so no move that began earlier, here or elsewhere, succeeds any
  more.
* In a store with other writers each owner raises the epoch first. It stores a request, checks the
  epoch, stores the entries, and checks the epoch again: so a later owner finds the request of every
  entry that may still arrive. A request that is not whole then is cancelled for good.
* Several processes may take over at once. Each decides about the newest requests by compare-and-set
  of their rows, so all decide alike; then the owner notes in the head up to where requests are
  settled. An earlier request without a decision was stored too late, and never counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from tms.delayed.entries import (
    GROUP,
    HEAD,
    TALLY,
    DelayedEntry,
    Head,
    Moved,
    Request,
    RequestState,
    Tally,
    all_of,
    cancelled_key,
    entry_key,
    entry_of,
    entry_value,
    id_of,
    request_key,
)
from tms.delayed.repetitions import Requests
from tms.errors import Conflict, DataCorrupt, NotFound, StorageUnavailable, TooLarge
from tms.log.records import decode, encode
from tms.model import keys
from tms.model.delayed import SEQUENCE_MAX, DelayedId
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Owner, PositionKey
from tms.store.base import Map, MapRow, Store, pages
from tms.transactions.participants import InternalPositions

RESERVED = 1 << 20  # sequences reserved with one write
SCAN_BYTES = 4 << 20
SETTLED_MAX = 64  # take-overs after which requests are known to come too late
REQUEST_BYTES = 256 << 10  # read at once while the scheduler waits
_DELETED_MAX = 10_000  # keys of one call


@dataclass(slots=True)
class RowWrites:
    """Rows to be written together, and their effect."""

    requests: list[MapRow] = field(default_factory=list)
    rows: list[MapRow] = field(default_factory=list)
    marks: set[bytes] = field(default_factory=set)  # keys of cancelled messages
    waiting: int = 0  # change of the number of waiting messages
    first: DelayedId | None = None  # the earliest new entry
    first_sequence: int = SEQUENCE_MAX
    durability: Durability = Durability.WRITTEN


class StoredDelayQueue:
    """The stored delayed messages of one topic. The caller holds the topic's lock, except for
    `peek` and `scan`."""

    def __init__(
        self, store: Store, name: TopicName, uid: int, positions: InternalPositions
    ) -> None:
        self.name = name
        self.uid = uid
        self.shared = store.shared
        self.trusted = False  # False: everything is read again first
        self.lost = store.shared  # True if another process may be the owner
        self.moved = Moved()
        self.waiting = 0
        self.next_sequence = 1
        self.begin = DelayedId(0, 0)  # no waiting message is before
        self.requests = Requests()
        self.head = Head(0, 1)
        self._store = store
        self.position_owner: Owner | None = None  # may move the position, and no other
        self._positions = positions
        self._map: Map | None = None
        self._unsynced = False  # True if a power loss may take stored rows

    def ready(self, create: bool) -> bool:
        """Become the owner and load everything; True if there is a map, which `create` creates.
        Nothing is read if `trusted` was True before."""
        if not self.trusted:
            map_ = self._opened(create)
            if map_ is None:
                return False
            self._load(map_)
        return True

    def require_owned(self) -> None:
        """Raise `StorageUnavailable` if another owner has taken over."""
        if self.shared and self._open_map.get(HEAD) != encode(self.head):
            self.trusted, self.lost = False, True
            raise StorageUnavailable(
                f"The delayed messages of {self.name} were taken over by another process. Try "
                "again.",
                outcome="unknown",
            )

    # -- writing -----------------------------------------------------------------------------------

    def sequences(self, count: int) -> int:
        """Reserve `count` sequences; returns the first."""
        first = self.next_sequence
        if first + count > self.head.reserved:
            wanted = first + count + RESERVED
            if wanted > SEQUENCE_MAX:
                raise TooLarge(f"The topic {self.name} has had too many delayed messages.")
            head = msgspec.structs.replace(self.head, reserved=wanted)
            with self._writing():
                done = self._open_map.compare_and_set(HEAD, encode(self.head), encode(head))
            if not done:
                self.require_owned()
            self.head = head
        self.next_sequence = first + count
        return first

    def put(self, writes: RowWrites) -> None:
        """Store decided rows; they count if this raises no error."""
        with self._writing():
            waiting = self.waiting + writes.waiting
            rows = [*writes.rows, (TALLY, encode(Tally(self.moved, waiting)))]
            if not self.shared:
                self._open_map.write([*writes.requests, *rows], writes.durability)
            else:
                if writes.requests:
                    self._open_map.write(writes.requests, writes.durability)
                self.require_owned()
                self._open_map.write(rows, writes.durability)
                self.require_owned()
            self.waiting = waiting
            self._unsynced = writes.durability is not Durability.SYNCED

    def make_durable(self) -> None:
        """Make everything stored so far survive a power loss."""
        if self._unsynced:
            with self._writing():
                tally = encode(Tally(self.moved, self.waiting))
                self._open_map.write([(TALLY, tally)], Durability.SYNCED)
                self._unsynced = False

    def set_moved(self, moved: Moved, messages: int, entries: Sequence[DelayedId]) -> None:
        """Delete entries whose move was committed."""
        with self._writing():
            if moved != self.moved:  # else it was counted when everything was read again
                self.moved, self.waiting = moved, max(0, self.waiting - messages)
            tally = encode(Tally(moved, self.waiting))
            self._open_map.write([(TALLY, tally)], Durability.WRITTEN)
            self.delete([entry_key(id) for id in entries])

    def rewrite(
        self, rewritten: Sequence[tuple[DelayedEntry, bytes]], gone: Sequence[DelayedId]
    ) -> None:
        """Replace the values of entries, and delete others, durably. Messages that are missing
        afterwards are cancelled already."""
        rows = [(entry_key(entry.id), value) for entry, value in rewritten]
        with self._writing():
            if not self.shared:
                self._open_map.overwrite(rows, Durability.SYNCED)
            else:  # a former owner must not restore entries that were moved meanwhile
                for (entry, _), (key, value) in zip(rewritten, rows, strict=True):
                    old = entry_value(entry.partition, entry.block)
                    if not self._open_map.compare_and_set(key, old, value):
                        self.require_owned()
            self.delete([entry_key(id) for id in gone])

    def delete(self, gone: Sequence[bytes]) -> None:
        """Delete rows."""
        for at in range(0, len(gone), _DELETED_MAX):
            self._open_map.delete(gone[at : at + _DELETED_MAX])

    # -- reading -----------------------------------------------------------------------------------

    @property
    def value_bytes_max(self) -> int:
        """The maximum size of an entry."""
        return self._open_map.value_bytes_max

    def scan(self, start: DelayedId, upto_ms: int | None, bytes_max: int) -> list[DelayedEntry]:
        """Entries from `start` on that are due by `upto_ms`, about `bytes_max` bytes of them, up to
        a damaged one. Raises `DataCorrupt` if that is the first."""
        stop = all_of(b"d")[1] if upto_ms is None else entry_key(DelayedId(upto_ms + 1, 0))
        rows = self._open_map.scan(entry_key(start), stop, bytes_max)
        entries: list[DelayedEntry] = []
        for key, value in rows:
            try:
                entries.append(entry_of(key, value))
            except DataCorrupt:
                if not entries:
                    raise
                break
        return entries

    def first(self, start: DelayedId) -> DelayedId | None:
        """The first entry from `start` on."""
        entries = self.scan(start, None, 1)
        return entries[0].id if entries else None

    def holding(self, id: DelayedId) -> DelayedEntry | None:
        """The entry with a message."""
        start, stop = entry_key(DelayedId(id.due_ms, 0)), entry_key(id) + b"\0"
        rows = self._open_map.scan(start, stop, 1, reverse=True)
        if not rows:
            return None
        entry = entry_of(*rows[0])
        return entry if id < entry.end else None

    def cancelled(self, first: DelayedId, last: DelayedId) -> set[DelayedId]:
        """The cancelled messages from `first` to `last`."""
        rows = self._rows(cancelled_key(first), cancelled_key(last) + b"\0")
        return {id_of(key) for key, _ in rows}

    def mark(self, id: DelayedId) -> int | None:
        """The epoch in which a message was cancelled, None if it was not."""
        raw = self._open_map.get(cancelled_key(id))
        return None if raw is None else int.from_bytes(raw, "big")

    def marks_before(self, time_ms: int) -> list[bytes]:
        """Some keys of marks of messages that were due before a time."""
        start, stop = all_of(b"x")[0], cancelled_key(DelayedId(time_ms, 0))
        return [key for key, _ in self._open_map.scan(start, stop, SCAN_BYTES)]

    def peek(self) -> tuple[int, DelayedId | None]:
        """The number of waiting messages and the first entry, read without owning the map."""
        map_ = self._opened(create=False)
        if map_ is None:
            return 0, None
        raw = map_.get(TALLY)
        waiting = 0 if raw is None else decode(raw, Tally, TALLY).waiting
        return waiting, self.first(DelayedId(0, 0))

    # -- parts -------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Make everything be read again if a write fails: it may have been stored."""
        try:
            yield
        except BaseException:
            self.trusted = False
            raise

    @property
    def _open_map(self) -> Map:
        assert self._map is not None, "`ready` comes before writes and scans"
        return self._map

    def _opened(self, create: bool) -> Map | None:
        if self._map is None:
            name = keys.delayed_map(self.uid)
            try:
                self._map = self._store.open(name, create=False)
            except NotFound:
                if not create:
                    return None
                try:
                    self._map = self._store.open(name, create=True)
                except Conflict:  # another process was first
                    self._map = self._store.open(name, create=False)
        return self._map

    def _load(self, map_: Map) -> None:
        map_.recover()
        raw = map_.get(HEAD)
        old = Head(0, 1) if raw is None else decode(raw, Head, HEAD)
        self.head = Head(old.epoch + 1, old.reserved + RESERVED, old.settled)
        self._set(HEAD, raw, encode(self.head))
        self.position_owner, position = self._positions.take(PositionKey(GROUP, self.name, 0))
        self.moved = Moved.of(position)
        # An earlier topic of this name may have left the position.
        self.next_sequence = max(old.reserved, self.moved.before)
        self.requests = Requests(self._stored_requests)
        if self.shared:
            self._settle_requests(old.reserved)
        raw = map_.get(TALLY)
        tally = Tally(Moved(), 0) if raw is None else decode(raw, Tally, TALLY)
        counted = tuple(tally.moved) == self.moved
        self.waiting = tally.waiting
        gone, messages = self._moved()
        if not counted:  # before they are deleted: afterwards they cannot be counted
            self.waiting = max(0, self.waiting - messages)
            map_.write([(TALLY, encode(Tally(self.moved, self.waiting)))], Durability.WRITTEN)
        self.delete(gone)
        self.trusted, self.lost, self._unsynced = True, False, False

    def _settle_requests(self, reserved: int) -> None:
        """Decide about the newest requests, whose entries a former owner may still be writing, and
        cancel those that are not whole. All groups below `reserved` are settled then."""
        newest, undecided = self.requests.undecided()
        if newest >= reserved:  # of a later owner, which is loading
            raise self._taken_over()
        for made_ms, token, raw in undecided:
            request, key, whole = decode(raw, Request, token), request_key(made_ms, token), False
            if request.state is RequestState.NONE:
                whole = all(self._is_decided(id) for id in request.ids())
                state = RequestState.WHOLE if whole else RequestState.CANCELLED
                decided = encode(msgspec.structs.replace(request, state=state))
                self._set(key, raw, decided)
                self.requests.add(made_ms, token, decided)
            if not whole:
                self._cancel(request)
                self.delete([key])
                self.requests.discard(token)
        settled = [known for known in self.head.settled if known[0] != newest]
        settled = [*settled[1 - SETTLED_MAX :], (newest, reserved)]
        head = msgspec.structs.replace(self.head, settled=settled)
        self._set(HEAD, encode(self.head), encode(head))
        self.head = head

    def _cancel(self, request: Request) -> None:
        ids, mark = _messages(request), self.head.mark()
        for at in range(0, len(ids), _DELETED_MAX):
            marks = [(cancelled_key(id), mark) for id in ids[at : at + _DELETED_MAX]]
            self._open_map.write(marks, Durability.SYNCED)

    def _set(self, key: bytes, expected: bytes | None, value: bytes) -> None:
        """Replace a row. Raises `StorageUnavailable` if it is not the expected one."""
        if not self._open_map.compare_and_set(key, expected, value):
            raise self._taken_over()

    def _taken_over(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"The delayed messages of {self.name} are being taken over by another process. Try "
            "again."
        )

    def _stored_requests(self, after: bytes) -> Sequence[tuple[bytes, bytes]]:
        start, stop = all_of(b"a")
        bytes_max = SCAN_BYTES if self.shared else REQUEST_BYTES
        while True:
            rows = self._open_map.scan(max(start, after + b"\0"), stop, bytes_max)
            late = {key for key, raw in rows if self._is_late(decode(raw, Request, key))}
            self.delete(sorted(late))
            if len(late) < len(rows) or not rows:
                return [row for row in rows if row[0] not in late]
            after = rows[-1][0]

    def _is_late(self, request: Request) -> bool:
        """True if a request was stored after its writer had lost the ownership."""
        return request.state is RequestState.NONE and any(
            first <= request.group < end for first, end in self.head.settled
        )

    def _is_decided(self, id: DelayedId) -> bool:
        """True if an entry is stored, or its write was whole before the last move began, whose
        position may be before the entry."""
        return id.sequence < self.moved.before or self._open_map.get(entry_key(id)) is not None

    def _moved(self) -> tuple[list[bytes], int]:
        """The keys of entries that were moved and are still there: of one batch, see above; and how
        many messages of them waited."""
        start, found_keys, messages = DelayedId(0, 0), list[bytes](), 0
        self.begin = DelayedId(self.moved.due_ms, self.moved.last)
        while page := self.scan(start, self.moved.due_ms, SCAN_BYTES):
            start = page[-1].end
            gone = [entry for entry in page if self.moved.covers(entry.id)]
            if len(gone) < len(page):
                kept = next(entry.id for entry in page if not self.moved.covers(entry.id))
                self.begin = min(self.begin, kept)
            if gone:
                cancelled = self.cancelled(gone[0].id, gone[-1].end)
                for entry in gone:
                    found_keys.append(entry_key(entry.id))
                    messages += entry.messages - len(entry.places_of(cancelled))
        return found_keys, messages

    def _rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return chain.from_iterable(pages(self._open_map, start, stop, SCAN_BYTES))


def _messages(request: Request) -> list[DelayedId]:
    count = sum(count for _, count in request.entries)
    return [DelayedId(request.due_ms, request.sequence + at) for at in range(count)]
