"""`tms consume`: prints the messages of a topic as they come.

* What is printed for a batch is written at once, so nothing waits in a buffer while the topic is
  quiet.
* In a pipe bytes go through as they are; on a terminal they are escaped (see `tms.cli.output`).
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from tms.cli.output import Format, csv_text, escape, json_message, json_text, text_of, yaml_item
from tms.cli.session import START, TOPIC, Session, Shared
from tms.model.position import Position

if TYPE_CHECKING:
    import tms
    from tms.model.log import Message

Render = Callable[["Message"], bytes]

_ESCAPE = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|%$", re.DOTALL)
_BACKSLASHED = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: dict[str, Callable[["Message"], bytes]] = {
    "v": lambda message: message.value or b"",
    "s": lambda message: message.value or b"",
    "k": lambda message: message.key or b"",
    "h": lambda message: b",".join(
        name.encode() + b"=" + value for name, value in message.headers.items()
    ),
    "t": lambda message: message.topic.encode(),
    "T": lambda message: b"%d" % message.timestamp_ms,
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "i": lambda message: str(message.id).encode(),
    "S": lambda message: b"%d" % (-1 if message.value is None else len(message.value)),
    "K": lambda message: b"%d" % (-1 if message.key is None else len(message.key)),
    "%": lambda message: b"%",
}


@click.command("consume", cls=Shared)
@click.argument("topic", type=TOPIC)
@click.option(
    "--from",
    "start",
    type=START,
    default="latest",
    help="earliest, latest, -10 (the last ten of each partition), a time, a message id, offset:N.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of the topic.")
@click.option("-f", "--format", "template", help=r"For example '%k %v\n'; see docs/cli.md.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    help="Whether to stop at open transactions. [committed]",
)
@click.option(
    "--filter", "where", help='Only what matches: "key ^= user- and header.kind = order".'
)
@click.pass_obj
def command(
    session: Session,
    topic: str,
    start: Position | int,
    count: int | None,
    exit_at_end: bool,
    template: str | None,
    partitions: tuple[int, ...],
    isolation: str,
    where: str | None,
) -> None:
    """Print the messages of TOPIC.

    \b
      tms consume flights --from earliest --exit-at-end --json
      tms consume flights --from -10 -e --format '%k %v\\n'
      tms consume flights --from 2026-11-01T00:00Z -n 1
      tms consume flights --filter 'key ^= LH and header.kind = delay'
    """
    render = _renderer(session.format, template)
    with session.bus() as bus:
        begin = _last(bus, topic, -start) if isinstance(start, int) else start
        consumer = bus.consumer(
            topic,
            start=begin,
            partitions=list(partitions) or None,
            stop_at_end=exit_at_end,
            isolation=isolation,
            where=where,
        )
        with closing(consumer):
            printed = 0
            for text in _printed(consumer, render, count):
                _write(b"".join(text))
                printed += len(text)
    session.say(f"{printed:,} messages")


def _printed(consumer: "tms.Consumer", render: Render, count: int | None) -> Iterator[list[bytes]]:
    """The rendered messages of each batch, `count` in total."""
    left = count
    for batch in consumer.batches():
        texts = [render(message) for message in islice(batch.messages(), left)]
        yield texts
        if left is not None:
            left -= len(texts)
            if left == 0:
                return


def _last(bus: "tms.Bus", topic: str, count: int) -> Mapping[int, Position]:
    """In each partition the place `count` messages before its end."""
    return {
        one.partition: Position.offset(max(one.start_offset, one.end_offset - count))
        for one in bus.describe_topic(topic).partition_infos
    }


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _renderer(form: Format, template: str | None) -> Render:
    """How each message is printed."""
    if template is not None and form is not Format.TABLE:
        raise click.UsageError("Choose one of --format and --output.")
    match form:
        case Format.JSON:
            return lambda message: (json_text(_document(message)) + "\n").encode()
        case Format.YAML:
            return lambda message: (yaml_item(_document(message)) + "\n").encode()
        case Format.CSV:
            return _Csv()
        case Format.TABLE:
            return _template("%v\n" if template is None else template, sys.stdout.isatty())


def _facts(message: "Message") -> dict[str, Any]:
    return {
        "partition": message.partition,
        "id": str(message.id),
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
    }


def _document(message: "Message") -> dict[str, Any]:
    return json_message(_facts(message), message.key, message.value, message.headers)


class _Csv:
    """CSV lines, the first one after the header line."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, message: "Message") -> bytes:
        row = {
            **_facts(message),
            "key": text_of(message.key),
            "value": text_of(message.value),
            "headers": ",".join(f"{name}={text_of(raw)}" for name, raw in message.headers.items()),
        }
        text = csv_text([row])
        if self._begun:
            text = text.partition("\r\n")[2]
        self._begun = True
        return text.encode()


def _template(template: str, safe: bool) -> Render:
    """A format with escapes as a function; `safe` escapes what came from the messages."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    end = 0
    for match in _ESCAPE.finditer(template):
        parts.append(template[end : match.start()].encode(errors="surrogateescape"))
        end = match.end()
        field, character = match[1], match[2]
        if field is not None and field in _FIELDS:
            parts.append(_FIELDS[field])
        elif character is not None and character in _BACKSLASHED:
            parts.append(_BACKSLASHED[character])
        elif character is not None and len(character) == 3:
            parts.append(bytes.fromhex(character[1:]))
        else:
            raise click.BadParameter(
                f"{match[0]!r} is no escape; docs/cli.md lists them.", param_hint="--format"
            )
    parts.append(template[end:].encode(errors="surrogateescape"))

    def render(message: "Message") -> bytes:
        made = []
        for part in parts:
            if isinstance(part, bytes):
                made.append(part)
            else:
                raw = part(message)
                made.append(escape(text_of(raw) or "").encode() if safe else raw)
        return b"".join(made)

    return render
