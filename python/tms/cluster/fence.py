"""The fence of an instance: a record that others move when its memory is out of date.

    instance/ID   FenceRecord   in the map `metadata`

Invariants

* A process that takes something over from an instance, or changes topics that it may remember,
  moves its record afterwards, and before it acknowledges anything that the instance does not know.
  So an instance that finds its record unmoved, after a request had come, answers it with the truth.
  No clock and no session is asked.
* An instance without a record, or with that of a later process, owns nothing.
"""

import uuid
from collections.abc import Collection

import msgspec

from tms.errors import DataCorrupt, NotOwner, StorageUnavailable
from tms.model.keys import INSTANCE_PREFIX, prefix_stop
from tms.model.topic import Durability
from tms.runtime.decoding import from_json
from tms.store.base import Map, pages

_ATTEMPTS = 64
_SCAN_BYTES = 1 << 20


class FenceRecord(msgspec.Struct, frozen=True):
    """The number of times that others have moved the record of a process."""

    process: str
    moved: int = 0


class InstanceFence:
    """The fence of this process as the instance `id`; the name of a process is never used again.
    Thread-safe."""

    def __init__(self, metadata: Map, id: str, process: str = "") -> None:
        self._metadata = metadata
        self.key = INSTANCE_PREFIX + id.encode()
        self._id = id
        self._process = process or uuid.uuid4().hex
        self._settled = 0
        self.name = f"{id} {self._process}"  # in records of partitions

    def join(self) -> None:
        """Become the instance of this id; an earlier process with the id ceases to be it."""
        record = FenceRecord(self._process)
        self._metadata.write([(self.key, msgspec.json.encode(record))], Durability.SYNCED)

    def leave(self) -> None:
        """Be no instance any more, unless a later process is it."""
        raw = self._metadata.get(self.key)
        if raw is not None and _decoded(raw, self.key).process == self._process:
            self._metadata.compare_and_set(self.key, raw, None)

    def look(self) -> int | None:
        """None if the record was not moved since `settle`; else the number to pass to `settle`.
        Raises `NotOwner`."""
        raw = self._metadata.get(self.key)
        record = None if raw is None else _decoded(raw, self.key)
        if record is None or record.process != self._process:
            how = "was removed" if record is None else "is another process by now"
            raise NotOwner(
                f"The instance {self._id} {how}. Go to another instance, or start this one anew.",
                owner=None,
            )
        return None if record.moved == self._settled else record.moved

    def settle(self, moved: int) -> None:
        """Note that everything from before the record was moved so often is forgotten."""
        self._settled = moved

    def fence(self, names: Collection[str]) -> None:
        """Move the records of other processes, by their names; of one that is gone there is nothing
        to move. Raises `StorageUnavailable`."""
        for name in sorted(names):
            id, _, process = name.rpartition(" ")
            self._move(INSTANCE_PREFIX + id.encode(), process)

    def announce(self) -> None:
        """Move the records of all other processes."""
        start, stop = INSTANCE_PREFIX, prefix_stop(INSTANCE_PREFIX)
        for page in pages(self._metadata, start, stop, _SCAN_BYTES):
            for key, raw in page:
                if key != self.key:
                    self._move(key, _decoded(raw, key).process)

    def _move(self, key: bytes, process: str) -> None:
        for _ in range(_ATTEMPTS):
            raw = self._metadata.get(key)
            record = None if raw is None else _decoded(raw, key)
            if record is None or record.process != process:
                return
            moved = msgspec.json.encode(FenceRecord(process, record.moved + 1))
            if self._metadata.compare_and_set(key, raw, moved):
                return
        raise StorageUnavailable(f"The record {key.decode()} is changed too often. Try again.")


def remove_all(metadata: Map) -> None:
    """Let no instance own anything: their store is owned otherwise."""
    start, stop = INSTANCE_PREFIX, prefix_stop(INSTANCE_PREFIX)
    for page in pages(metadata, start, stop, _SCAN_BYTES):
        metadata.delete([key for key, _ in page])


def _decoded(raw: bytes, key: bytes) -> FenceRecord:
    try:
        return from_json(raw, FenceRecord)
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(
            f"The record `{key.decode()}` of the store is damaged ({exc}). Stop that instance, "
            "remove the record, and start it again."
        ) from exc
