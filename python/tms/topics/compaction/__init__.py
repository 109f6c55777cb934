"""Removing messages from the middle of a log: compaction by key, and erasing.

compaction   the schedule of compactions, in a thread of its own
cleaning     one pass over a partition
newest       the newest offset of each key in a range
rewriting    taking messages out of sealed segments, so that a crash leaves a correct log
progress     the progress of a partition, and the work that is left, in its record
merging      merging small sealed segments of a partition
erasing      removing the messages of a key, or one message, for good

Invariants

* Ids and offsets of messages that stay never change, nor does the order.
* Compaction does not touch undecided messages, nor the open segment.
* Interrupted work is repeated from the start: each change that was made would be made again.
"""
