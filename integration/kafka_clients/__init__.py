"""Kafka clients of other languages, unmodified, on a running `tms serve --kafka-port`.

recorder   a TCP relay that counts the requests of a client
service    the service, on a data directory of its own, behind a recorder
table      the requests and versions that each client used: build/tests/kafka-clients.md

    make test-kafka
"""
