"""The HBase engine: each map is the rows with one prefix in one of three tables.

hbase.thrift  the IDL of Thrift 2, as HBase publishes it
connection   one connection to a Thrift server, and the meaning of its errors
pool         connections for all threads, deadlines, retries
scanning     rows of a range, page by page
rows         where a map's rows are, how a value becomes cells
blocks       a map of messages or payloads: timestamps from its keys, writes that can be repeated
records      a map of small records: compare and set
store        maps by name, the store's health
overwriting  rows that replace existing ones, by the timestamps of their cells
coprocessor  the reports of the coprocessor: its version, its faults, its progress of cleaning
admin        tables, regions and notes about them, for the operator
deployment   installing TMS in an HBase, watching it, removing it
"""

from tms.store.hbase.pool import HBasePlace, Limits
from tms.store.hbase.store import HBaseStore

__all__ = ["HBaseStore", "Limits", "HBasePlace"]
