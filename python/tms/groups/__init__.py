"""Log groups: consumers that share the partitions of a topic.

assignment       pure: who has which partition
membership       pure: the members of one group, their epochs
members          the members of all groups over the journal `system:_groups`, sessions, the fence
positions        pure: positions of groups as one value
group_positions  the same over the journal `system:_positions`, a participant of commits
classic_calls    requests and answers of Kafka's classic group protocol
classic_member   pure: a member of such a group, and the group in the journal `system:_groups`
classic          pure: one group of that protocol
classic_groups   pure: the groups of a shard, within bounds
classic_shard    the same for threads, beside the groups of TMS's own protocol
groups           the facade: what engine and rooms above use
"""
