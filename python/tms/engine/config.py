"""The bounds of an engine, and what it counts."""

from dataclasses import dataclass, field, fields

from tms.cluster.ownership import OwnerLimits
from tms.compaction.compaction import CompactionLimits
from tms.errors import Invalid
from tms.log.partition import LogLimits
from tms.options import named_fields

_LIMITS = {"log": LogLimits, "compaction": CompactionLimits, "owner": OwnerLimits}


@named_fields
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of an engine. Bytes and seconds. Raises `Invalid`."""

    cache_bytes: int = 64 << 20
    in_flight_bytes: int = 128 << 20
    block_bytes: int = 32 << 20  # of one block once decompressed
    topics: int = 100_000
    threads: int = 8
    cleaner_interval_s: float = 30.0
    transaction_lifetime_ms: int = 25 * 3_600_000  # of one whose manager is elsewhere
    log: LogLimits = field(default_factory=LogLimits)
    compaction: CompactionLimits = field(default_factory=CompactionLimits)
    owner: OwnerLimits = field(default_factory=OwnerLimits)  # of a store that others can reach

    def __post_init__(self) -> None:
        for one in fields(self):
            given = getattr(self, one.name)
            kind = _LIMITS.get(one.name)
            if kind is not None:
                fits, wanted = isinstance(given, kind), f"{kind.__module__}.{kind.__name__}"
            else:
                fits, wanted = type(given) in (int, float) and given >= 0, "a number from 0 on"
            if not fits:
                raise Invalid(f"{one.name} is {wanted}, got {given!r:.80}.", field=one.name)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was opened, and what it holds now."""

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
    retention_held_back_ms: int
    transactions_open: int
    transactions_oldest_ms: int
    transactions_invalid: int
    partitions_blocked: int
    transactions_committed: int
    compaction_passes: int
    compaction_removed: int  # messages
    compaction_reclaimed_bytes: int
    erased: int  # messages
    delayed_waiting: int
    delayed_delivered: int
