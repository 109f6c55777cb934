"""Counters of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was opened, and gauges of its present state."""

    messages: int
    blocks: int
    bytes: int
    writes: int
    syncs: int
    partitions_open: int
    cache_bytes: int
    cache_hits: int
    cache_misses: int
    in_flight_bytes: int
    clock_ahead_ms: int
    partitions_held: int
    retention_held_back_ms: int
    compaction_passes: int
    compaction_removed: int  # messages
    compaction_reclaimed_bytes: int
    erased: int  # messages
    cluster_instances: int = 0  # this and the next: only in a cluster
    cluster_coordinates: int = 0
    cluster_shards: int = 0
    cluster_taken_over: int = 0  # partitions, from instances that may have lived
    cluster_released: int = 0  # partitions, to others
    cluster_fates_asked: int = 0
    cluster_opening_ms: int = 0
    cluster_clock_skew_ms: int = 0  # the largest, of the clocks of other instances
    cluster_store_away: int = 0
    cluster_unfit: int = 0
    transactions_open: int = 0  # this and the next four: only where transactions are held
    transactions_oldest_ms: int = 0
    transactions_invalid: int = 0
    partitions_blocked: int = 0
    transactions_committed: int = 0
    delayed_waiting: int = 0  # in the shards of this instance
    delayed_delivered: int = 0
