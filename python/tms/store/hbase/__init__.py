"""The HBase engine: each map is the rows with one prefix in one of three tables.

thrift       calls to HBase's Thrift 2 servers: connections, deadlines, scans
rows         where a map's rows are, how a value becomes cells
blocks       a map of messages or payloads: timestamps from its keys, writes that can be repeated
records      a map of small records: compare and set
store        maps by name, the store's health
overwriting  rows that replace existing ones, by the timestamps of their cells
coprocessor  what the coprocessor says of itself and has cleaned
admin        tables, regions and what is noted about them, for the operator
deployment   putting TMS into an HBase, watching it there, taking it out again
"""

from tms.store.hbase.store import HBaseStore
from tms.store.hbase.thrift.pool import HBasePlace, Limits

__all__ = ["HBaseStore", "Limits", "HBasePlace"]
