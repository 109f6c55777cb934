"""The engine: the door to everything below."""

from tms.compaction.compaction import CompactionLimits
from tms.engine.config import EngineConfig, EngineStats
from tms.engine.engine import Engine
from tms.engine.owning import own

__all__ = ["CompactionLimits", "Engine", "EngineConfig", "EngineStats", "own"]
