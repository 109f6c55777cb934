"""One queue: what of a topic's partitions is settled, leased, waiting (pure state, no I/O)."""
