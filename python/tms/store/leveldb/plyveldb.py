"""LevelDB below a map, through plyvel."""

from pathlib import Path

import plyvel

from tms.store.leveldb.drivers import BLOCK_CACHE_BYTES, Database

_FILES_OPEN = 74  # the least that LevelDB takes: 64 tables and 10 files of its own


class PlyvelDriver:
    """The driver of LevelDB: plyvel's objects have the methods of the protocols."""

    failures: tuple[type[Exception], ...] = (plyvel.Error, OSError)

    def open(self, path: Path, write_buffer_bytes: int) -> Database:
        """The database in this directory."""
        database: Database = plyvel.DB(
            str(path),
            create_if_missing=False,
            paranoid_checks=True,
            compression=None,
            write_buffer_size=write_buffer_bytes,
            lru_cache_size=BLOCK_CACHE_BYTES,
            max_open_files=_FILES_OPEN,
        )
        return database

    def repair(self, path: Path) -> None:
        """LevelDB's own repair."""
        plyvel.repair_db(
            str(path), paranoid_checks=True, compression=None, max_open_files=_FILES_OPEN
        )
