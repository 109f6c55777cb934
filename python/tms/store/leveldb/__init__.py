"""The store on disk: each map is a LevelDB database in a directory of its own, within a data
directory; RocksDB if LevelDB cannot be installed.

store      maps by name
map        one map: writes, reads, failing and recovering, at most so many databases open
databases  how databases of maps are opened, how many may be open, the state of the disk
directory  the data directory: its format, its lock, how maps come and go in one step
drivers    the port of the database, and the choice of one for a directory
plyveldb   LevelDB, through plyvel
rocksdb    RocksDB, through rocksdict
rows       rows of a database: writing, iterating, and the values that they point to
values     the file with the large values
image      an image of the data directory at one moment, for backups
files      checks of LevelDB's files that LevelDB leaves out
upgrade    from LevelDB to RocksDB, for good
rescue     for a data directory that is not open: inspecting a copy, repairing a damaged map
"""

from tms.store.leveldb.databases import WRITE_BUFFER_BYTES, LevelDBLimits
from tms.store.leveldb.rescue import read_only_copy, repair
from tms.store.leveldb.store import LevelDBStore

__all__ = ["WRITE_BUFFER_BYTES", "LevelDBLimits", "LevelDBStore", "read_only_copy", "repair"]
