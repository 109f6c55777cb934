"""Types of the arguments and options of commands, and those that several commands have."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tms.cli.declaring import ARGUMENT, declared_by
from tms.cli.session import Shared, session_of
from tms.errors import Invalid, TMSError
from tms.model.ids import TIME_MS_MAX
from tms.model.quantity import seconds, size_of
from tms.model.topic import RETENTION_DEFAULT, TopicName, parse_retention
from tms.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tms.model.position import Position

T = TypeVar("T")


def session_command(
    name: str, group: click.Group | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator that makes a command, of a group or by itself, of a function that takes the
    session and then its own parameters, which its signature declares; see `declaring`. Its
    docstring is the command's help."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        parameters, run = declared_by(function)
        command = Shared(
            name, params=parameters, callback=click.pass_obj(run), help=function.__doc__
        )
        if group is not None:
            group.add_command(command)
        return command

    return decorate


class TopicType(click.ParamType[str]):
    """A topic's name; completes with the names that exist."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(TopicName.parse(value))
        except TMSError as error:
            self.fail(error.message, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        namespace, colon, _ = incomplete.partition(":")
        try:
            with session_of(ctx).bus() as bus:
                infos = list(bus.list_topics(namespace if colon else "default"))
        except (TMSError, OSError, click.UsageError):
            return []
        names = [f"{namespace}:{info.topic}" if colon else str(info.name) for info in infos]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class SizeType(click.ParamType[int | str]):
    """Bytes, with K, M, G or T for powers of 1,024; where it is a limit, `unlimited` too."""

    name = "size"

    def __init__(self, *, limit: bool = False) -> None:
        self._limit = limit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if isinstance(value, int) or (self._limit and value == "unlimited"):
            return value  # type: ignore[no-any-return]
        try:
            return size_of("A size", value)
        except Invalid as error:
            self.fail(error.message)


class ParsedTime(click.ParamType[T]):
    """A type of arguments: `parse` makes the value of a text and the present time in ms, or raises
    the fault."""

    def __init__(self, name: str, parse: Callable[[str, int], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        clock = SystemClock() if ctx is None else session_of(ctx).clock
        return Parsed(self.name, lambda text: self._parse(text, clock.now_ms())).convert(
            value, param, ctx
        )


class Parsed(click.ParamType[T]):
    """A type of arguments: `parse` makes the value or raises the fault."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            return self._parse(value)
        except TMSError as error:
            self.fail(error.message, param, ctx)


def _parse_retention(text: str) -> str:
    """`14d`, `36h`, `forever`."""
    parse_retention(text)
    return text


def _parse_topic_retention(text: str) -> str:
    return text if text == RETENTION_DEFAULT else _parse_retention(text)


def _parse_start(text: str, now_ms: int) -> "Position | int":
    """A position, or a negative number for so many messages before each end."""
    return int(text) if re.fullmatch(r"-[0-9]{1,15}", text) else _parse_position(text, now_ms)


def _parse_position(text: str, now_ms: int) -> "Position":
    """A position that is the same in all partitions."""
    from tms.model.position import Position

    if re.match(r"@|[0-9]{4}-|-[0-9.]+[a-z]", text):
        return Position.time(_parse_time(text, now_ms))
    try:
        return Position.parse(text)
    except TMSError as error:
        raise Invalid(
            f"{text!r} is none of earliest, latest, 2026-11-01T00:00Z, -1h (an hour ago), a "
            "message id, after:ID, offset:N, time:MS; where each partition may begin elsewhere, "
            "also -10 (the last ten)."
        ) from error


def _parse_group(text: str) -> str:
    from tms.model.transaction import check_group

    return check_group(text)


def _parse_time(text: str, now_ms: int) -> int:
    """`2026-11-01T00:00Z` in ms since 1970, UTC unless it names a zone; `-1h` is an hour ago."""
    try:
        if re.match(r"-[0-9.]+[a-z]", text):
            time_ms = now_ms - round(1_000 * seconds("A time ago", text[1:]))
        else:
            moment = datetime.fromisoformat(text.removeprefix("@"))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            time_ms = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, Invalid) as exc:
        raise Invalid(
            "A time is like 2026-11-01T00:00Z, or -1h for an hour ago (ms, s, m, h, d, w), got "
            f"{text!r}."
        ) from exc
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise Invalid(f"A time is from 1970-01-01 to 9999-12-31, got {text!r}.")
    return time_ms


TOPIC, GROUP = TopicType(), Parsed("group", _parse_group)
RETENTION = Parsed("duration", _parse_retention)
TOPIC_RETENTION = Parsed("duration", _parse_topic_retention)
SECONDS, TIME = Parsed("duration", partial(seconds, "A duration")), ParsedTime("time", _parse_time)
START, POSITION = ParsedTime("position", _parse_start), ParsedTime("position", _parse_position)
SIZE, LIMIT = SizeType(), SizeType(limit=True)


def one_of(words: type[StrEnum]) -> click.Choice[str]:
    """A type of arguments: one of the words of an enumeration."""
    return click.Choice([word.value for word in words])


TopicParameter = Annotated[str, TOPIC]
GroupParameter = Annotated[str, GROUP]
FilesParameter = Annotated[
    tuple[Path, ...],
    ARGUMENT,
    click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
]
PartitionsOption = Annotated[tuple[int, ...], "-p", "--partition", click.IntRange(min=0)]
NamespaceOption = Annotated[str, "-n", "[default]"]
PartitionOption = Annotated[int | None, "-p", click.IntRange(min=0)]
PositionOption = Annotated["Position", POSITION]
LimitOption = Annotated[int | None, "-n", click.IntRange(min=1), "Stop after so many messages."]
TemplateOption = Annotated[str | None, "-f", "--format"]
DryRunOption = Annotated[bool, "Only show what would change."]
YesOption = Annotated[bool, "-y", "Do not ask."]
