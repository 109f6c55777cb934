"""The log of one partition: appending, fetching, segments, recovery. Knows blocks and maps, but no
topics and no names."""
