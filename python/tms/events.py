"""What the engine tells its operator: an event's name first, then key=value.

Events go through the standard library's logging under the logger `tms`, so the program that embeds
TMS decides where they go; without a word from it, warnings and errors appear on stderr.
"""

import logging
from typing import Any


class Event:
    """A log message that keeps its fields, for handlers that write them as JSON."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{key}={value!r}" for key, value in self.fields.items())))


class EventLog:
    """Tells events under one logger's name."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: Any) -> None:
        """Something normal that an operator may want to know."""
        self._logger.info(Event(event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        """Something that an operator should look at."""
        self._logger.warning(Event(event, fields))

    def error(self, event: str, **fields: Any) -> None:
        """Something was lost or could not be done."""
        self._logger.error(Event(event, fields))

    def exception(self, event: str, **fields: Any) -> None:
        """Like `error`, with the exception that is being handled."""
        self._logger.exception(Event(event, fields))
