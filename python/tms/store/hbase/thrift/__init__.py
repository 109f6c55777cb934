"""Calls to HBase's Thrift 2 servers; knows no maps and no tables of TMS.

hbase.thrift  the IDL, as HBase publishes it
connection    one connection; what its errors mean
pool          connections for all threads, deadlines, trying again
scanning      rows of a range, page by page
"""
