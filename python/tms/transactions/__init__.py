"""Transactions over topics, positions and queues: all or nothing.

pure
    edits            changes of the state: the values in the journal
    state            all transactions as one value, and Tephra's rules
    in_progress      errors for a transaction that is not in progress
    state_snapshot   snapshots of the state in the journal
    images           the state for readers in other processes
    pruning          decisions about which transactions leave the invalid list
    transactional_state  the transactional ids of Kafka's producers, and the rules about them

over the journal
    journal          the journaled state
    commit_queue     commits that come together are written together
    manager          questions about transactions, and their changes
    watchers         callers that wait for the end of a transaction
    stored_image     the image of all transactions in a shared store
    tephra           transactions for clients of Apache Tephra

over topics
    writes           the ranges that a transaction stored before its commit, and the turn to end it
    uncommitted      storing it, staging it, rolling it back
    repeating        storing it once, although the owner of a partition goes meanwhile
    commit           one commit on its way
    participants     the ports of the states that commits change besides messages
    transactions     the facade for the engine and the rooms above
    transactional_ids    transactional ids, and the journal of their producers

user data
    tables           versioned keys and values that transactions write beside messages
    versions         visibility of versions; knows nothing of topics
"""
