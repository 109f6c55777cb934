"""Says what of the readings contradicts the ledgers. Plain Python, and nothing of TMS.

history     the ledgers as operations and messages
reading     what one reader saw
fates       which messages have to be there, may be gone, have to be gone
logs        one reading of a topic against the history
agreement   the readings of a topic against each other
queues      leases, settlements, dead letters
derived     groups, outputs, delayed messages, views, tables
"""
