"""Finds contradictions between readings and ledgers. Plain Python, without TMS.

history     the ledgers as operations and messages
reading     the messages that one reader saw
fates       messages that must be there, may be gone, must be gone
logs        one reading of a topic against the history
agreement   the readings of a topic against each other
queues      leases, settlements, dead letters
derived     groups, outputs, delayed messages, views, tables
"""
