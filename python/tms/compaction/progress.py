"""How far a partition is compacted, kept in its record.

    clean        up to this key a pass is done: each key has at most one message there
    passes       where passes ended, and when: a tombstone goes once a pass over it was done so long
                 ago, because everybody who still saw an older message of its key has seen it since
    reclaim      maps that have been rewritten and whose space is still to be given back

Invariants

* It changes by compare-and-set: compaction and erasing may be at the same partition.
"""

from collections.abc import Callable

import msgspec

from tms.errors import StorageUnavailable
from tms.log.records import FIRST_KEY, BlockKey, CompactionRecord, decode, encode
from tms.model import keys
from tms.store.base import Map

PASSES_MAX = 64
_ATTEMPTS = 16


class Progress:
    """The record of one partition."""

    def __init__(self, metadata: Map, uid: int, partition: int) -> None:
        self._metadata = metadata
        self._key = keys.compaction_key(uid, partition)
        self._partition = partition
        self._raw: bytes | None = None
        self.record = CompactionRecord()
        self._read()

    def horizon(self, now_ms: int, retention_ms: int | None) -> BlockKey:
        """Up to which key tombstones have been kept for long enough."""
        if retention_ms is None:
            return FIRST_KEY
        old = [end for end, done_ms in self.record.passes if done_ms <= now_ms - retention_ms]
        return max(old, default=FIRST_KEY)

    def begin(self, names: list[str]) -> None:
        """These maps are about to be rewritten."""
        if not set(names) <= set(self.record.reclaim):
            self._set(lambda old: {"reclaim": tuple(sorted({*old.reclaim, *names}))})

    def reclaimed(self, name: str) -> None:
        """The space of a map was given back."""
        self._set(lambda old: {"reclaim": tuple(noted for noted in old.reclaim if noted != name)})

    def done(self, clean: BlockKey, now_ms: int, horizon: BlockKey) -> None:
        """A pass ended at a key, at a time."""

        def changes(old: CompactionRecord) -> dict[str, object]:
            passes = [pass_ for pass_ in old.passes if pass_[0] >= horizon and pass_[1] <= now_ms]
            passes.append((clean, now_ms))
            if len(passes) > PASSES_MAX:  # then some tombstones wait for a later one
                passes = passes[::-2][::-1]
            return {"clean": max(clean, old.clean), "passes": tuple(passes)}

        self._set(changes)

    def _read(self) -> None:
        self._raw = self._metadata.get(self._key)
        self.record = CompactionRecord()
        if self._raw is not None:
            self.record = decode(self._raw, CompactionRecord, self._key)

    def _set(self, changes: Callable[[CompactionRecord], dict[str, object]]) -> None:
        for _ in range(_ATTEMPTS):
            new = msgspec.structs.replace(self.record, **changes(self.record))
            raw = encode(new)
            if self._metadata.compare_and_set(self._key, self._raw, raw):
                self.record, self._raw = new, raw
                return
            self._read()
        raise StorageUnavailable(
            f"The record of how far partition {self._partition} is compacted is being changed by "
            "many at once. Try again."
        )
