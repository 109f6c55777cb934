"""Values and bytes: ids, positions, topics, blocks, keys. No I/O, no waiting, no clock."""
