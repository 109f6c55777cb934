"""`tms publish`: every line of standard input or of files becomes a message.

* Lines are bytes: nothing is decoded, and only the line feed at the end is taken off.
* With `--key-field` each line must be a JSON object; the key is that field of it, the value the
  line as it is.
* A bad line names its file and number; the lines before it are published.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import click
import msgspec

from tms.api.strict import check_strict
from tms.cli.output import Row, draw_line
from tms.cli.parameters import (
    SECONDS,
    TIME,
    FilesParameter,
    PartitionOption,
    TopicParameter,
    one_of,
    session_command,
)
from tms.cli.session import Session
from tms.cli.topics import time_text
from tms.errors import BadJson, Invalid, TooLarge
from tms.model.delayed import DelayedId
from tms.model.message import Headers
from tms.model.topic import MESSAGE_BYTES_MAX, Durability

_PROGRESS_EVERY = 1 << 18
_STANDARD_INPUT = Path("-")
_LATER_LINES, _LATER_BYTES = 10_000, 1 << 20  # of one request


class _InputLine:
    """A line of the input: its bytes and its source."""

    __slots__ = ("number", "raw", "source")

    def __init__(self, source: str, number: int, raw: bytes) -> None:
        self.source, self.number, self.raw = source, number, raw

    def __str__(self) -> str:
        return f"{self.source}, line {self.number}"


@dataclass(frozen=True)
class _Keying:
    """The options that say where the key is in a line."""

    ndjson: Annotated[bool, "Refuse lines that are not JSON."] = False
    key_field: Annotated[str | None, "Lines are JSON objects; this field is the key."] = None
    key_delim: Annotated[str | None, "-K", "Lines are KEY, this text, VALUE."] = None

    def __post_init__(self) -> None:
        if self.key_field is not None and self.key_delim is not None:
            raise click.UsageError("Choose one of --key-field and --key-delim.")
        if self.key_delim == "":
            raise click.UsageError("--key-delim needs at least one character.")

    @cached_property
    def _delim(self) -> bytes:
        return (self.key_delim or "").encode(errors="surrogateescape")

    def split(self, line: _InputLine) -> tuple[bytes | None, bytes]:
        """The key and the value in this line. Raises `Invalid`."""
        if self.ndjson or self.key_field is not None:
            return self._json_key(line), line.raw
        if self.key_delim is None:
            return None, line.raw
        key, found, value = line.raw.partition(self._delim)
        if not found:
            raise Invalid(f"{line} has no key: the delimiter is not in it.", line=line.number)
        return key, value

    def _json_key(self, line: _InputLine) -> bytes | None:
        try:
            document = msgspec.json.decode(line.raw)
            if self.key_field is not None:  # a name that stands twice is no key
                check_strict(line.raw, str(line))
        except BadJson as error:
            raise Invalid(error.message, line=line.number) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise Invalid(f"{line} is not JSON: {exc}", line=line.number) from exc
        if self.key_field is None:
            return None
        if not isinstance(document, dict) or self.key_field not in document:
            message = f"{line} is not an object with a field {self.key_field!r}."
            raise Invalid(message, line=line.number)
        key = document[self.key_field]
        if key is None:
            return None
        return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


@session_command("publish")
def command(
    session: Session,
    topic: TopicParameter,
    keying: _Keying,
    files: FilesParameter = (),
    headers: Annotated[tuple[str, ...], "-H", "--header", "NAME=VALUE, for every message."] = (),
    event_time: Annotated[int | None, TIME, "For every message: 2026-11-01T00:00Z."] = None,
    partition: Annotated[PartitionOption, "Instead of by key."] = None,
    durability: Annotated[str | None, one_of(Durability)] = None,
    compression: Annotated[Literal["none", "lz4", "zstd"], "[none]"] = "none",
    delay: Annotated[float | None, SECONDS, "Deliver them after this time: 90s, 1h, 2d."] = None,
    deliver_at: Annotated[int | None, TIME, "Deliver them then: 2026-11-01T00:00Z."] = None,
) -> None:
    """Publish each line of FILES, or of standard input (also `-`), to TOPIC.

    With --delay or --deliver-at they wait until they are due, and the ids to cancel them with are
    printed.

    \b
      echo hello | tms publish greetings
      tms publish flights flights.ndjson --key-field carrier
      tms publish logs -K : -H source=web01 < lines.txt
    """
    fixed = dict(_header(text) for text in headers) or None
    options: dict[str, Any] = {
        "durability": durability,
        "compression": compression,
        "partition": partition,
    }
    lines = _Lines(files, keying, fixed, event_time)
    if delay is None and deliver_at is None:
        _publish(session, topic, lines, **options)
    else:
        _publish_later(session, topic, lines, at=deliver_at, delay=delay, **options)


def _publish(
    session: Session, topic: str, lines: "_Lines", partition: int | None, **options: Any
) -> None:
    """Publish lines as they come."""
    count = size = 0
    began_s = session.clock.monotonic_s()
    with (
        session.bus() as bus,
        bus.producer(topic, **options) as producer,
        _progress(session, lines.files) as progress,
    ):
        for line in _lines(lines.files):
            key, value = lines.keying.split(line)
            producer.send(value, key, lines.headers, partition, lines.event_time_ms)
            count += 1
            size += len(line.raw) + 1
            progress(count, size)
        producer.flush()
    seconds = session.clock.monotonic_s() - began_s
    session.say(
        f"published {count:,} messages ({size:,} bytes) to {topic} in {seconds:.2f} s: "
        f"{count / seconds:,.0f} messages/s"
    )
    facts = {"topic": topic, "messages": count, "bytes": size, "seconds": round(seconds, 3)}
    session.show_result(facts)


def _publish_later(session: Session, topic: str, lines: "_Lines", **options: Any) -> None:
    """Publish lines that wait until they are due."""
    ids: list[DelayedId] = []
    with session.bus() as bus:
        for batch in _batches(_lines(lines.files)):
            split = [lines.keying.split(line) for line in batch]
            keys = [key for key, _ in split] if any(key is not None for key, _ in split) else None
            each = None if lines.headers is None else [lines.headers] * len(split)
            values = [value for _, value in split]
            times = [lines.event_time_ms] * len(split)
            ids += bus.publish_later_many(
                topic, values, keys, each, event_times_ms=times, **options
            )
    rows: list[Row] = [{"id": str(id), "deliver_at": time_text(id.due_ms)} for id in ids]
    session.say(f"{len(ids):,} messages wait in {topic}")
    session.show(rows, rows)


def _batches(lines: Iterable[_InputLine]) -> Iterator[list[_InputLine]]:
    batch: list[_InputLine] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.raw)
        if len(batch) == _LATER_LINES or size >= _LATER_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Lines(NamedTuple):
    """Lines to publish: where they are, and what becomes of each."""

    files: tuple[Path, ...]
    keying: _Keying
    headers: Headers | None
    event_time_ms: int | None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"A header is NAME=VALUE, got {text!r}.", param_hint="--header")
    return name, value.encode(errors="surrogateescape")


def _lines(files: tuple[Path, ...]) -> Iterator[_InputLine]:
    """The lines of all files, or of standard input if there are none. Raises `TooLarge`."""
    for path in files or (_STANDARD_INPUT,):
        if path == _STANDARD_INPUT:
            yield from _lines_of(sys.stdin.buffer, "standard input")
        else:
            with path.open("rb") as stream:
                yield from _lines_of(stream, str(path))


def _lines_of(stream: BinaryIO, source: str) -> Iterator[_InputLine]:
    number = 0
    while raw := stream.readline(MESSAGE_BYTES_MAX + 2):
        number += 1
        line = _InputLine(source, number, raw.removesuffix(b"\n"))
        if len(line.raw) > MESSAGE_BYTES_MAX:
            raise TooLarge(f"{line} has over {MESSAGE_BYTES_MAX:,} bytes.", line=number)
        yield line


@contextmanager
def _progress(session: Session, files: tuple[Path, ...]) -> Iterator[Callable[[int, int], None]]:
    """A function that takes the number of messages and bytes sent so far. It draws a line with
    the rate, every 256 KiB, if standard error is a terminal and lines are not typed there."""
    read = not files or _STANDARD_INPUT in files
    if session.quiet or not sys.stderr.isatty() or (read and sys.stdin.isatty()):
        yield lambda count, size: None
        return
    total = 0 if read else sum(path.stat().st_size for path in files)
    began_s, drawn_bytes = session.clock.monotonic_s(), 0

    def at(count: int, size: int) -> None:
        nonlocal drawn_bytes
        if size - drawn_bytes >= _PROGRESS_EVERY:
            drawn_bytes = size
            rate = count / (session.clock.monotonic_s() - began_s)
            share = f"{size * 100 // total:>3} %  " if total else ""
            draw_line(f"{share}{size >> 20:,} MiB  {count:,} messages  {rate:,.0f} messages/s")

    try:
        yield at
    finally:
        if drawn_bytes:
            draw_line("")
