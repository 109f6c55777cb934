"""Protocols of others on the same engine.

cdap     CDAP's messaging over HTTP, under `/v1`
kafka    Kafka's protocol; so far its record batches
tephra   Apache Tephra's transactions over Thrift
"""
