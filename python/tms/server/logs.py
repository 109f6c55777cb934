"""Structured logs on stderr: one event a line, JSON unless a person watches.

No line is longer than 4 KiB, whatever a request or an error holds, and control characters are
escaped, so that no log line can be forged.
"""

import logging
import os
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from tms.runtime.events import Event
from tms.server.access_log import LOGGER

LINE_BYTES_MAX = 4_096
_VALUE_CHARS_MAX = 1_200
_SHORT_CHARS_MAX = 120  # however it is escaped, eight of them fit into a line
_ALWAYS = ("event", "level", "timestamp", "request_id", "code")


def configure(level: str, form: str, access_log: bool = False) -> None:
    """Send TMS's events and the warnings of libraries to stderr; `form` is auto, json or text. An
    access log is there whatever the level is."""
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    renderer = _Bounded(
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ,
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _clean,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_fields, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[stream], level=max(number, logging.WARNING), force=True)
    logging.getLogger("tms").setLevel(number)
    if access_log:
        logging.getLogger(LOGGER).setLevel(min(number, logging.INFO))


def _fields(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """TMS's events keep their fields."""
    message = event["_record"].msg
    if isinstance(message, Event):
        event["event"] = message.name
        event.update(message.fields)
    return event


def _clean(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Long texts lose their middle, and all but tracebacks their control characters."""
    for name, value in event.items():
        text = value if isinstance(value, str) else repr(value)
        if len(text) > _VALUE_CHARS_MAX:
            half = _VALUE_CHARS_MAX // 2
            text = event[name] = f"{text[:half]} … {text[-half:]}"
        if name != "exception" and not text.isprintable():
            event[name] = text.encode("unicode_escape").decode()
    return event


class _Bounded:
    """A renderer whose lines are never too long: what does not fit is left out."""

    def __init__(self, renderer: Processor) -> None:
        self._renderer = renderer

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        kept = {name: str(event[name])[:_SHORT_CHARS_MAX] for name in _ALWAYS if name in event}
        line = str(self._renderer(logger, method, event))
        if len(line.encode("utf-8", "replace")) < LINE_BYTES_MAX:
            return line
        return str(self._renderer(logger, method, {**kept, "cut": True}))
