"""The settings of an engine: bounds of bytes, threads, topics and times."""

from dataclasses import dataclass, field, fields
from typing import TypedDict

from tms.cluster.ownership import OwnerLimits
from tms.errors import Invalid
from tms.log.partition import LogLimits
from tms.runtime.options import named_fields
from tms.topics.compaction.compaction import CompactionLimits
from tms.topics.partitions import TopicLimits

__all__ = ["CompactionLimits", "EngineConfig", "EngineOptions"]

NUMBER_MAX = (2**31 - 1) * 1_000  # of a setting: the longest time in ms that CDAP accepts
_LIMITS = {"log": LogLimits, "compaction": CompactionLimits, "owner": OwnerLimits}


class EngineOptions(TypedDict, total=False):
    """Fields of `EngineConfig`, as `tms.open` takes them."""

    cache_bytes: int
    in_flight_bytes: int
    block_bytes: int
    topics: int
    threads: int
    cleaner_interval_s: float
    transaction_lifetime_ms: int
    log: LogLimits
    compaction: CompactionLimits
    owner: OwnerLimits


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
        for field_ in fields(self):
            value = getattr(self, field_.name)
            kind = _LIMITS.get(field_.name)
            if kind is not None:
                fits, wanted = isinstance(value, kind), f"{kind.__module__}.{kind.__name__}"
            else:
                fits = type(value) in (int, float) and 0 <= value <= NUMBER_MAX
                wanted = f"a number from 0 to {NUMBER_MAX}"
            if not fits:
                raise Invalid(f"{field_.name} is {wanted}, got {value!r:.80}.", field=field_.name)

    def of_topics(self) -> TopicLimits:
        """The bounds of all topics together."""
        return TopicLimits(
            self.topics,
            self.cache_bytes,
            self.in_flight_bytes,
            self.block_bytes,
            self.log,
            max(1, self.threads // 2),
        )
