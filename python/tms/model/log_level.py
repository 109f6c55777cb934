"""How much a service writes into its log."""

from dataclasses import dataclass

DEFAULT_LEVEL = "default"  # as the logger was when the service started
LEVELS = ("debug", "info", "warning", "error")
FOR_S_MAX = 7 * 86_400.0
LOGGER = "tms"  # all of TMS's are below it


@dataclass(frozen=True, slots=True)
class LogLevel:
    """A logger that has a level of its own: its level, what that is by `default` (empty: the one of
    the logger above it), and until when it is another one, in ms since 1970 (None: until the
    service starts again). `instance` is empty for a service that is alone."""

    logger: str
    level: str
    default: str
    until_ms: int | None = None
    instance: str = ""
