"""Erasing: the waiting messages of a key are cancelled, and their bytes leave the store.

    look at a page ─▶ is one of the key in it? ─▶ cancel them ─▶ write their entries anew, or delete

Invariants

* They are cancelled first, durably: an entry of which some messages are emptied is never delivered
  with them. What a crash leaves is found by a repetition, because the key still stands there.
* An entry keeps its id, its count and the ids of its messages.
* What is lent is left alone: either it is moved, and in the log from then on, or it is given back.
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
    """What is to be erased: the messages with a key, of one partition or of all."""

    key: bytes
    partition: int | None

    def places(self, entry: DelayedEntry) -> set[int]:
        """Which of an entry's messages it is. Raises `DataCorrupt`."""
        if self.partition not in (None, entry.partition):
            return set()
        return {at for at, key in enumerate(decode(entry.block).keys()) if key == self.key}


class DelayedErasing:
    """One erasing from what waits of a topic."""

    def __init__(self, waiting: DelayQueue, wanted: DelayedEraseTarget, timeout_s: float) -> None:
        self._waiting = waiting
        self._stored = waiting.stored
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._erased = 0

    def run(self) -> int:
        """Erase what waits now; how many messages. Raises `TimedOut` when a move does not end."""
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
        """Erase from a page; where to go on."""
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
            if self._waiting.lends(entry.id):
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
        """Write entries anew without some of their messages, which are cancelled."""
        anew: list[tuple[DelayedEntry, bytes]] = []
        nothing_left: list[DelayedId] = []
        for entry, gone in changed:
            whole = len(gone) == entry.messages
            if whole and not self._stored.shared:
                nothing_left.append(entry.id)
                continue
            # Whoever takes over would hold a request whose entry is missing for one that never
            # came as a whole. So it is deleted once its request is forgotten.
            if whole:
                self._waiting.note_cancelled(entry.id, together=1)
            anew.append((entry, _emptied(entry, gone)))
        self._stored.rewrite(anew, nothing_left)


def _emptied(entry: DelayedEntry, gone: set[int]) -> bytes:
    """The value of an entry with nothing left of some of its messages but their places."""
    columns = decode(entry.block)
    cells = zip(columns.values(), columns.keys(), columns.headers(), strict=True)
    left = [(None, None, None) if at in gone else cell for at, cell in enumerate(cells)]
    values, keys, headers = zip(*left, strict=True)
    block = encode(values, keys, headers, compression=columns.compression)
    return entry_value(entry.partition, block)
