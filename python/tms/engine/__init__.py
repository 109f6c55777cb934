"""The engine: the door to everything below."""

from tms.compact.compaction import CompactionLimits
from tms.engine.config import EngineConfig, EngineStats
from tms.engine.engine import Engine

__all__ = ["CompactionLimits", "Engine", "EngineConfig", "EngineStats"]
