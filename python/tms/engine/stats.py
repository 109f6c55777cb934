"""The counters and sizes of an engine, for metrics."""

from tms.cluster.cluster import Cluster
from tms.engine.held_roles import HeldRoles
from tms.model.stats import EngineStats
from tms.topics.compaction.compaction import Compaction
from tms.topics.topics import Topics


def engine_stats(
    topics: Topics, roles: HeldRoles, compaction: Compaction, cluster: Cluster | None
) -> EngineStats:
    """Counters since the engine was opened, and its sizes now."""
    logs = topics.partitions.opened()
    counters = [log.state.counters for log in logs]
    now_ms = topics.clock.now_ms()
    coordination, delayed = roles.coordination.held, roles.shards.delayed
    transactions = {} if coordination is None else coordination.transactions.stats(now_ms).named()
    return EngineStats(
        messages=sum(c.messages for c in counters),
        blocks=sum(c.blocks for c in counters),
        bytes=sum(c.bytes for c in counters),
        writes=sum(c.writes for c in counters),
        syncs=sum(c.syncs for c in counters),
        partitions_open=len(logs),
        cache_bytes=topics.partitions.cache.bytes,
        cache_hits=topics.fetcher.hits,
        cache_misses=topics.fetcher.misses,
        in_flight_bytes=topics.partitions.in_flight.bytes,
        partitions_held=len(topics.fetcher.held),
        clock_ahead_ms=max(0, *(log.state.last[0] - now_ms for log in logs), 0),
        retention_held_back_ms=topics.retention.held_back_ms(),
        **transactions,
        delayed_waiting=delayed.waiting,
        delayed_delivered=delayed.lateness.count,
        **({} if cluster is None else cluster.stats(roles)),
        **compaction.counters(),
    )
