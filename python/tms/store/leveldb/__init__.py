"""The store on disk: each map is a LevelDB database in a directory of its own, within a data
directory; where LevelDB does not install, a RocksDB.

store      maps by name
map        one map: writes, reads, failing and recovering, at most so many databases open
databases  how databases of maps are opened, how many may be open, the state of the disk
directory  the data directory: its format, its lock, how maps come and go in one step
drivers    what TMS needs of the database, and which one a directory has
plyveldb   LevelDB, through plyvel
rocksdb    RocksDB, through rocksdict
rows       rows of a database: put, walked through, with the values that they point to
values     the file with the large values
image      all of it as it is at one moment, for backups
files      what LevelDB's files must look like, beyond what LevelDB checks itself
upgrade    from LevelDB to RocksDB, for good
rescue     for a data directory that nobody has open: look at a copy of it, mend a damaged map
"""

from tms.store.leveldb.databases import WRITE_BUFFER_BYTES, LevelDBLimits
from tms.store.leveldb.rescue import read_only_copy, repair
from tms.store.leveldb.store import LevelDBStore

__all__ = ["WRITE_BUFFER_BYTES", "LevelDBLimits", "LevelDBStore", "read_only_copy", "repair"]
