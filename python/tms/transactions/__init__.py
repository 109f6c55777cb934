"""Transactions over topics, positions and queues: all or nothing.

pure
    edits            what can happen to transactions: the values that the journal keeps
    state            all transactions as one value, and Tephra's rules
    in_progress      one transaction in progress, and what to say of one that is not
    state_snapshot   the state as the journal keeps it now and then
    images           the state for those who are not in this process
    pruning          what may leave the invalid list

over the journal
    journal          the journaled state
    commit_queue     commits that come together are written together
    manager          what can be asked of transactions and done to them
    watchers         who waits for the end of one
    stored_image     the image of all transactions in a shared store
    tephra           transactions as Apache Tephra's clients ask for them

over topics
    writes           what a transaction stored before its commit, and who may end it
    uncommitted      storing it, staging it, rolling it back
    commit           one commit on its way
    participants     the ports for what else commits
    transactions     the facade: what engine and rooms above use
"""
