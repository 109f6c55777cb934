"""The store of a worker: records from the supervisor, every other map opened in the directory."""

import os

from tms.cluster.workers.records import ServedRecords
from tms.errors import Conflict
from tms.model.keys import METADATA_MAP
from tms.runtime.clock import Clock
from tms.store.base import Map, StoreImage
from tms.store.leveldb.databases import LevelDBLimits
from tms.store.leveldb.directory import JoinedDirectory
from tms.store.leveldb.store import LevelDBStore


class WorkerStore(LevelDBStore):
    """A data directory that a supervisor has, and workers divide: a map is open in one process at a
    time, as LevelDB has it."""

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        records: ServedRecords,
        clock: Clock,
        limits: LevelDBLimits,
    ) -> None:
        self._records = records
        super().__init__(path, create=False, clock=clock, limits=limits)

    def _open_directory(self, path: str | os.PathLike[str], create: bool) -> JoinedDirectory:
        return JoinedDirectory(path)

    def image(self) -> StoreImage:
        """Raises `Conflict`: no worker can hold the maps of all."""
        raise Conflict(
            "A data directory that workers divide has no backup while they run.",
            next="stop the service and back up the directory: tms backup --data DIR --to BACKUP",
        )

    def open(self, name: str, create: bool) -> Map:
        """The map with this name; that of records is the supervisor's."""
        if name != METADATA_MAP:
            return super().open(name, create)
        if create:
            raise Conflict(f"The map {name} exists already.")
        return self._records
