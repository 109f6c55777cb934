"""The log of one partition: appending, fetching, segments, recovery. This room knows blocks and
maps, but neither topics nor their names.
"""
