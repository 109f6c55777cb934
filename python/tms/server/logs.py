"""Structured logs on stderr: one event a line, JSON unless a person watches.

No line is longer than 4 KiB, whatever a request or an error holds, and control characters are
escaped, so that no log line can be forged.
"""

import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from tms.events import Event

_VALUE_CHARS_MAX = 1_500
_VALUES_MAX = 16
_SHORT_CHARS_MAX = 120


def configure(level: str, form: str) -> None:
    """Send structlog, the engine's events and the warnings of libraries to stderr; `form` is
    auto, json or text."""
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _bounded,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_fields, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[stream], level=max(number, logging.WARNING), force=True)
    logging.getLogger("tms").setLevel(number)


def _fields(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The engine's events keep their fields."""
    told = event["_record"].msg
    if isinstance(told, Event):
        event["event"] = told.name
        event.update(told.fields)
    return event


def _bounded(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Long texts are cut: the first long one less than the rest."""
    room = _VALUE_CHARS_MAX
    for name, value in list(event.items())[:_VALUES_MAX]:
        text = value if isinstance(value, str) else repr(value)
        limit = max(room, _SHORT_CHARS_MAX)
        if len(text) > limit:
            event[name] = text[: limit // 2] + " … " + text[-limit // 2 :]
        if len(text) > _SHORT_CHARS_MAX:
            room -= len(text)
    for name in list(event)[_VALUES_MAX:]:
        del event[name]
    return event
