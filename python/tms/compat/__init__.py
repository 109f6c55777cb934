"""Protocols of others on the same engine.

cdap     CDAP's messaging over HTTP, under `/v1`
kafka    Kafka's protocol, on a port of its own
tephra   Apache Tephra's transactions over Thrift
"""
