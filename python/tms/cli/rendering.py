"""The output of messages, one after another.

In a pipe bytes go through as they are; on a terminal they are escaped (see `tms.cli.output`).
"""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from tms.block.received import Delivered
from tms.cli.output import Format, csv_text, escape, json_message, json_text, text_of, yaml_text
from tms.model.message import Message
from tms.model.queue import QueuedMessage

RenderedMessage = Message[Any] | Delivered[Any] | QueuedMessage
Render = Callable[[Any], bytes]
Fields = Mapping[str, Callable[[Any], bytes]]
Facts = Callable[[Any], dict[str, Any]]

_ESCAPE = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|%$", re.DOTALL)
_BACKSLASHED = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
FIELDS: Fields = {
    "v": lambda message: message.value or b"",
    "s": lambda message: message.value or b"",
    "k": lambda message: message.key or b"",
    "h": lambda message: b",".join(
        name.encode() if value is None else name.encode() + b"=" + value
        for name, value in message.headers.items()
    ),
    "t": lambda message: message.topic.encode(),
    "T": lambda message: b"%d" % message.timestamp_ms,
    "E": lambda message: (
        b"%d" % message.event_time_ms if message.event_time_ms is not None else b""
    ),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "i": lambda message: str(message.id).encode(),
    "S": lambda message: b"%d" % (-1 if message.value is None else len(message.value)),
    "K": lambda message: b"%d" % (-1 if message.key is None else len(message.key)),
    "%": lambda message: b"%",
}


def write_bytes(text: bytes) -> None:
    """Bytes to standard output, at once."""
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def facts_of(message: RenderedMessage) -> dict[str, Any]:
    """A message's place, id and time, and its event time if it has one."""
    facts: dict[str, Any] = {
        "partition": message.partition,
        "id": str(message.id),
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
    }
    if message.event_time_ms is not None:
        facts["event_time_ms"] = message.event_time_ms
    return facts


def renderer(
    form: Format,
    template: str | None,
    default: str = "%v\n",
    facts: Facts = facts_of,
    fields: Fields = FIELDS,
) -> Render:
    """A function that prints a message: with `facts` as a document, or with `fields` by a
    format."""
    if template is not None and form is not Format.TABLE:
        raise click.UsageError("Choose one of --format and --output.")
    match form:
        case Format.JSON:
            return lambda message: (json_text(_document(message, facts)) + "\n").encode()
        case Format.YAML:
            return lambda message: yaml_text([_document(message, facts)]).encode()
        case Format.CSV:
            return _Csv(facts)
        case Format.TABLE:
            chosen = default if template is None else template
            return _template(chosen, fields, sys.stdout.isatty())


def _document(message: RenderedMessage, facts: Facts) -> dict[str, Any]:
    return json_message(facts(message), message.key, message.value, message.headers)


class _Csv:
    """CSV lines, the first one after the header line."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._begun = False

    def __call__(self, message: RenderedMessage) -> bytes:
        row = {
            **self._facts(message),
            "key": text_of(message.key),
            "value": text_of(message.value),
            "headers": ",".join(
                name if raw is None else f"{name}={text_of(raw)}"
                for name, raw in message.headers.items()
            ),
        }
        row["event_time_ms"] = row.pop("event_time_ms", None)  # a column also of those without
        text = csv_text([row])
        if self._begun:
            text = text.partition("\r\n")[2]
        self._begun = True
        return text.encode()


def _template(template: str, fields: Fields, safe: bool) -> Render:
    """A format with escapes as a function; `safe` escapes what came from the messages."""
    parts: list[bytes | Callable[[RenderedMessage], bytes]] = []
    end = 0
    for match in _ESCAPE.finditer(template):
        parts.append(template[end : match.start()].encode(errors="surrogateescape"))
        end = match.end()
        field, character = match[1], match[2]
        if field is not None and field in fields:
            parts.append(fields[field])
        elif character is not None and character in _BACKSLASHED:
            parts.append(_BACKSLASHED[character])
        elif character is not None and len(character) == 3:
            parts.append(bytes.fromhex(character[1:]))
        else:
            raise click.BadParameter(
                f"{match[0]!r} is no escape; docs/cli.md lists them.", param_hint="--format"
            )
    parts.append(template[end:].encode(errors="surrogateescape"))

    def render(message: RenderedMessage) -> bytes:
        pieces = []
        for part in parts:
            if isinstance(part, bytes):
                pieces.append(part)
            else:
                raw = part(message)
                pieces.append(escape(text_of(raw) or "").encode() if safe else raw)
        return b"".join(pieces)

    return render
