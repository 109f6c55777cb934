"""Kafka clients of other languages, unmodified, on a running `tms serve --kafka-port`.

install    the programs, installed on first use, in pinned versions
programs   the clients of the contract: each publishes rows, and reads rows as a member of a group
recorder   a TCP relay that counts the requests of a client
running    programs that tests run and watch
service    the service, on a data directory of its own, behind a recorder
table      the requests and versions that each client used: build/tests/kafka-clients.md

    make test-kafka
"""
