"""The progress of a partition's compaction, stored in its record.

    clean        a pass has covered all up to this key: each key has at most one message there
    passes       the end of each pass, and its time: a tombstone is removed `tombstone_retention`
                 after a pass has covered it, because by then every reader that saw an older message
                 of its key has had time to see it
    reclaim      rewritten maps whose space is still to be reclaimed

Invariants

* It changes by compare-and-set: a compaction and an erasing may work on the partition at once.
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
        """The key up to which the time of tombstones is over."""
        if retention_ms is None:
            return FIRST_KEY
        old = [end for end, done_ms in self.record.passes if done_ms <= now_ms - retention_ms]
        return max(old, default=FIRST_KEY)

    def begin(self, names: list[str]) -> None:
        """Record that these maps are about to be rewritten."""
        if not set(names) <= set(self.record.reclaim):
            self._set(lambda old: {"reclaim": tuple(sorted({*old.reclaim, *names}))})

    def reclaimed(self, name: str) -> None:
        """Record that the space of a map was reclaimed."""
        self._set(lambda old: {"reclaim": tuple(noted for noted in old.reclaim if noted != name)})

    def done(self, clean: BlockKey, now_ms: int, horizon: BlockKey) -> None:
        """Record that a pass ended at a key, at a time."""

        def changes(old: CompactionRecord) -> dict[str, object]:
            passes = [pass_ for pass_ in old.passes if pass_[0] >= horizon and pass_[1] <= now_ms]
            passes.append((clean, now_ms))
            if len(passes) > PASSES_MAX:  # some tombstones then wait for a later pass
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
                self.record = new
                self._raw = raw
                return
            self._read()
        raise StorageUnavailable(
            f"The record of how far partition {self._partition} is compacted is being changed by "
            "many at once. Try again."
        )
