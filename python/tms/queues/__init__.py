"""Work queues over the log: workers receive messages one by one, and acknowledge each.

pure
    entries       journal entries of a queue
    state         one queue over all partitions: effects of tokens
    partition     one partition of a queue: settled, leased, waiting, blocked messages
    key_order     only the first message of a key is with a worker
    deadlines     ends of leases and delays
    runs          runs of offsets

over the journal and the log
    journal       writing the journal `system:_queues`
    replay        reading it
    reading       reading the log: on from the frontier, and single messages again
    delivering    leasing messages to a worker
    peeking       reading messages without leasing them
    settling      messages that transactions settle
    dead_letters  messages that were delivered too often
    upkeep        the background thread: leases end, dead letters move
    waiters       callers that wait for messages
    checks        checks of arguments
    queue         one open queue
    queue_shard   the queues of one shard, over their journal
    queues        the facade: all queues of an engine
"""

from tms.queues.queues import Queues

__all__ = ["Queues"]
