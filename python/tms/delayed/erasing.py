"""Erasing: the waiting messages of a key are cancelled, and their bytes leave the store.

    read a page ─▶ find messages of the key ─▶ cancel them ─▶ rewrite or delete their entries

Invariants

* Messages are cancelled first, durably: an entry with emptied messages is never delivered with
  them. A repetition after a crash finds the rest, because it still has the key.
* An entry keeps its id, its count and the ids of its messages.
* An entry that the scheduler has taken is left alone: it is moved into the log, or released.
* The topic's lock is held for a page, and only where there is something to erase.
"""

from functools import partial
from typing import NamedTuple

from tms.block import decode, encode
from tms.delayed.entries import DelayedEntry, cancelled_key, entry_value
from tms.delayed.stored_queue import RowWrites
from tms.delayed.topic_queue import DelayQueue
from tms.model.delayed import DelayedId
from tms.model.topic import Durability

PAGE_BYTES = 128 << 10


class DelayedEraseTarget(NamedTuple):
    """The messages to erase: those with a key, of one partition or of all."""

    key: bytes
    partition: int | None

    def places(self, entry: DelayedEntry) -> set[int]:
        """The indexes of an entry's messages to erase. Raises `DataCorrupt`."""
        if self.partition not in (None, entry.partition):
            return set()
        return {at for at, key in enumerate(decode(entry.block).keys()) if key == self.key}


class DelayedErasing:
    """Erases waiting messages of a topic."""

    def __init__(self, waiting: DelayQueue, wanted: DelayedEraseTarget, timeout_s: float) -> None:
        self._waiting = waiting
        self._stored = waiting.stored
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._erased = 0

    def run(self) -> int:
        """Erase the messages that wait now; returns how many. Raises `TimedOut` if a move does not
        end."""
        start = self._stored.peek()[1]
        while start is not None:
            page = self._stored.scan(start, None, PAGE_BYTES)
            first = next((entry.id for entry in page if self._wanted.places(entry)), None)
            if first is not None:
                self._waiting.wait_returned(first, self._timeout_s)
                start = self._waiting.alone(partial(self._page, first))
            else:
                start = page[-1].end if page else None
        return self._erased

    def _page(self, start: DelayedId) -> DelayedId | None:
        """Erase from a page; returns the start of the next one."""
        page = self._stored.scan(start, None, PAGE_BYTES)
        if not page:
            return None
        following = page[-1].end
        cancelled = self._stored.cancelled(start, following)
        mark = self._stored.head.mark()
        writes, changed = (
            RowWrites(durability=Durability.SYNCED),
            list[tuple[DelayedEntry, set[int]]](),
        )
        for entry in page:
            places = self._wanted.places(entry)
            if not places:
                continue
            if self._waiting.is_taken(entry.id):
                following = entry.id
                break
            gone = entry.places_of(cancelled)
            writes.rows += [(cancelled_key(entry.id_at(at)), mark) for at in places - gone]
            changed.append((entry, places | gone))
        writes.waiting = -len(writes.rows)
        if writes.rows:
            self._stored.put(writes)
            self._erased -= writes.waiting
        self._change(changed)
        return following

    def _change(self, changed: list[tuple[DelayedEntry, set[int]]]) -> None:
        """Rewrite entries without some of their messages, which are cancelled."""
        rewritten: list[tuple[DelayedEntry, bytes]] = []
        nothing_left: list[DelayedId] = []
        for entry, gone in changed:
            whole = len(gone) == entry.messages
            if whole and not self._stored.shared:
                nothing_left.append(entry.id)
                continue
            # A later owner would take a request with a missing entry for one that was not stored
            # whole. So the entry is deleted once its request is forgotten.
            if whole:
                self._waiting.note_cancelled(entry.id, together=1)
            rewritten.append((entry, _emptied(entry, gone)))
        self._stored.rewrite(rewritten, nothing_left)


def _emptied(entry: DelayedEntry, gone: set[int]) -> bytes:
    """The value of an entry in which some messages have no key, value, headers and time any
    more."""
    columns = decode(entry.block)
    cells = zip(
        columns.values(), columns.keys(), columns.headers(), columns.event_times(), strict=True
    )
    left = [(None, None, None, None) if at in gone else cell for at, cell in enumerate(cells)]
    block = encode(*zip(*left, strict=True), compression=columns.compression)
    return entry_value(entry.partition, block)
