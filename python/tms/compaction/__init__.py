"""Messages that go from the middle of a log: compaction by key, and erasing.

compaction   when which partition is compacted, in a thread of its own
cleaning     one pass over a partition
newest       the newest offset of each key in a range
rewriting    taking messages out of sealed segments, so that a crash leaves a correct log
progress     how far a partition is, and what is left to do, in its record
throttle     how much of the time all this takes
merging      small sealed segments of a partition become one
erasing      taking the messages of a key, or one message, out for good

Invariants

* Ids and offsets of messages that stay never change, nor does the order.
* What is not decided yet is not touched by compaction, nor what is in the open segment.
* Whatever is interrupted is done again from the start: a change that was made is one that would be
  made again.
"""
