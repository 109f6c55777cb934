"""The engine: the door to everything below."""

from tms.engine.config import EngineConfig, EngineStats
from tms.engine.engine import Engine

__all__ = ["Engine", "EngineConfig", "EngineStats"]
