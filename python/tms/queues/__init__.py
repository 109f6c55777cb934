"""Work queues over the log: workers take messages one by one, and acknowledge each.

pure
    entries       what happened to a queue, as the journal has it
    state         one queue over all partitions: what tokens mean for it
    partition     what it knows of one partition: settled, leased, waiting, blocked
    key_order     of the messages with one key only the first is with a worker
    deadlines     when leases and delays end
    runs          runs of offsets

over the journal and the log
    journal       writing the journal `system:_queues`
    replay        reading it
    reading       reading the log, on and on and single messages again
    delivering    taking messages for a worker
    peeking       looking at messages without leasing them
    settling      messages that transactions settle
    dead_letters  messages that were delivered too often
    upkeep        what queues do by themselves: leases end, dead letters move
    waiters       who waits for messages
    checks        what callers ask, checked
    queue         one open queue
    queue_shard   the queues of one shard, over their journal
    queues        the facade: all queues of an engine
"""

from tms.queues.queues import Queues

__all__ = ["Queues"]
