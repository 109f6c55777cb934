"""Log levels of a service."""

from dataclasses import dataclass

DEFAULT_LEVEL = "default"  # the level with which the service started
LEVELS = ("debug", "info", "warning", "error")
FOR_S_MAX = 7 * 86_400.0
LOGGER = "tms"  # the parent of all loggers of TMS


@dataclass(frozen=True, slots=True)
class LogLevel:
    """A logger with a level of its own: its level, the level `default` (empty: that of the logger
    above it), and the time until which it differs, in ms since 1970 (None: until the service is
    restarted). `instance` is empty for a service without a cluster."""

    logger: str
    level: str
    default: str
    until_ms: int | None = None
    instance: str = ""
