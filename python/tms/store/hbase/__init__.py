"""The HBase engine: each map is the rows with one prefix in one of three tables.

connection  one connection to a Thrift 2 server; its errors
pool        connections for all threads, deadlines, trying again
rows        where a map's rows are, how a value becomes cells
scanning    rows of a range, page by page
blocks      a map of messages or payloads: timestamps from its keys, writes that can be repeated
records     a map of small records: compare and set
store       maps by name, the store's health
coprocessor what the coprocessor says of itself and has cleaned
admin       tables, regions and what is noted about them, for the operator
"""

from tms.store.hbase.pool import Limits, Place
from tms.store.hbase.store import HBaseStore

__all__ = ["HBaseStore", "Limits", "Place"]
