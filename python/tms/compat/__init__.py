"""Protocols of others on the same engine.

cdap     CDAP's messaging over HTTP, under `/v1`
tephra   Apache Tephra's transactions over Thrift
"""
