"""Log events for operators and for programs that use TMS: an event's name first, then key=value.

* Events go through the standard library's logging under the logger `tms`, so the program decides
  where they go. Unless it does, warnings and errors appear on stderr.
* Events that may be as frequent as failed calls go through a `BoundedLog`.
"""

import logging
from collections.abc import Callable
from typing import Any

from tms.runtime.clock import SystemClock

LINES = 10  # of an event of a `BoundedLog`
LINES_S = 10.0  # within this time


class Event:
    """A log record's message that keeps its fields, for handlers that write them as JSON."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{key}={value!r}" for key, value in self.fields.items())))


class EventLog:
    """Logs events under one logger's name."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event that only helps to find a fault."""
        self._logger.debug(Event(event, fields))

    def info(self, event: str, **fields: Any) -> None:
        """Log a normal event that an operator may want to know."""
        self._logger.info(Event(event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that an operator should look into."""
        self._logger.warning(Event(event, fields))

    def error(self, event: str, **fields: Any) -> None:
        """Log a loss, or a failed operation."""
        self._logger.error(Event(event, fields))

    def exception(self, event: str, **fields: Any) -> None:
        """Like `error`, with the exception that is being handled."""
        self._logger.exception(Event(event, fields))


class _Window:
    """The lines of one event since a time."""

    __slots__ = ("began_s", "left_out", "lines")

    def __init__(self, began_s: float, left_out: int) -> None:
        self.began_s = began_s
        self.left_out = left_out
        self.lines = 0


class BoundedLog:
    """Logs at most `LINES` of each event within `LINES_S`. The next line after those has the number
    of lines `left_out`. Takes no lock: threads that race for the last line may both write it."""

    def __init__(
        self, name: str, monotonic_s: Callable[[], float] = SystemClock.monotonic_s
    ) -> None:
        self._logger = logging.getLogger(name)
        self._monotonic_s = monotonic_s
        self._windows: dict[str, _Window] = {}  # by event, of which there are few

    def info(self, event: str, **fields: Any) -> None:
        """As `EventLog.info`, bounded."""
        self._tell(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """As `EventLog.warning`, bounded."""
        self._tell(logging.WARNING, event, fields)

    def _tell(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now_s, window = self._monotonic_s(), self._windows.get(event)
        if window is None or now_s - window.began_s >= LINES_S:
            left_out = 0 if window is None else window.left_out
            window = self._windows[event] = _Window(now_s, left_out)
        if window.lines >= LINES:
            window.left_out += 1
            return
        window.lines += 1
        if window.left_out:
            fields, window.left_out = {**fields, "left_out": window.left_out}, 0
        self._logger.log(level, Event(event, fields))
