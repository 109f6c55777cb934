"""The base of all commands: the target, the output, and types of arguments.

* The options of `_shared` may stand before or after the command's name.
* Options win over the environment, and the environment over the selected context; see `target`.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tms.cli.output import Format, Row, facts_text, say, show, write
from tms.cli.target import URL_DEFAULT, Target, target_of
from tms.client.http.credentials import read_token, token_of
from tms.errors import ConfigError, Invalid, NotFound, TMSError, Unavailable
from tms.model.ids import TIME_MS_MAX
from tms.model.quantity import seconds
from tms.model.topic import RETENTION_DEFAULT, TopicName, parse_retention
from tms.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import tms
    from tms.client.http.transport import HttpTransport
    from tms.model.position import Position
    from tms.runtime.tls import ClientTls

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_FIRST_ANSWER_S = 5.0
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(i?B?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class Session:
    """One run of `tms`: filled by the shared options while they are parsed."""

    url: str | None = None
    data: Path | None = None
    context: str | None = None
    token_file: Path | None = None
    store: str | None = None  # of the commands that talk to it without a service
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    form: Format | None = None
    quiet: bool = False
    no_input: bool = False
    printed_document: bool = False
    takes_data: bool = True  # false: the command ignores TMS_DATA
    clock: Clock = field(default_factory=SystemClock)

    @cached_property
    def meant(self) -> Target:
        """The target of the command, once the options are parsed: a service or a data directory."""
        environ = dict(os.environ)
        if not self.takes_data:
            environ.pop("TMS_DATA", None)
        return target_of(self.url, self.data, self.context, environ)

    def remote(self) -> "Session":
        """A copy for commands that need a service, whatever directory is selected."""
        return replace(self, data=None, takes_data=False)

    def target(self) -> tuple[str | None, Path | None]:
        """The URL or the data directory of the target; exactly one of them."""
        return self.meant.url, self.meant.data

    def where(self) -> str:
        """The service, store or directory, in words."""
        if self.store is not None:
            return self.store
        try:
            return self.meant.url or str(self.meant.data)
        except (click.UsageError, TMSError):  # another error is being told of
            return "tms"

    def bus(self, create: bool = False, outage_s: float | None = 0) -> "tms.Bus":
        """The target as an open bus. With `create` a missing data directory is made. Readers
        survive an outage of `outage_s`, one without end if None."""
        import tms

        url, data = self.target()
        if url is None:
            return self.embedded(data or Path(), create)
        tls = self.tls()
        urls = answering(tms.instances_at(url, tls), tls)
        return tms.connect(
            urls,
            outage_s=outage_s,
            token=self.token(),
            ca=self.trusted(),
            cert=self.own_certificate(),
        )

    def transport(self) -> "HttpTransport":
        """The transport of the target. Raises `ConfigError` for a data directory."""
        import tms
        from tms.client.http.transport import transport_to

        url, data = self.target()
        if url is None:
            raise ConfigError(
                f"The data directory {data} has neither a running service nor a cluster.",
                next="name a service with --url",
            )
        tls = self.tls()
        urls = answering(tms.instances_at(url, tls), tls)
        return transport_to(urls, token=self.token(), tls=tls)

    def token(self) -> str:
        """The token of the named file, of the context, or of the environment; empty if there is
        none."""
        if self.token_file is not None:
            return token_of(read_token(self.token_file))
        return token_of(self.meant.token(os.environ))

    def trusted(self) -> str | None:
        """The CA of --ca or of the context; None: that of the environment, if any."""
        return self.ca or self.meant.ca(os.environ)

    def own_certificate(self) -> tuple[str, str] | None:
        """The certificate and key of --cert (or TMS_CERT) and --key, or of the context; None: those
        of the environment, if any."""
        if self.cert or self.key:
            return self.cert or os.environ.get("TMS_CERT", ""), self.key or ""
        return self.meant.own_certificate(os.environ)

    def tls(self) -> "ClientTls":
        """The CA and the own certificate for TLS with a service. Raises `ConfigError`."""
        from tms.runtime.tls import ClientTls

        return ClientTls.of(self.trusted(), self.own_certificate())

    def embedded(self, data: Path, create: bool = False) -> "tms.Bus":
        """The log in a data directory, opened in this process."""
        import tms

        try:
            return tms.open(data, create=create)
        except NotFound as error:
            error.details["next"] = "correct --data, or begin one with `tms topic create`"
            raise

    @property
    def format(self) -> Format:
        """The format of the output; a table by default."""
        return self.form or Format.TABLE

    def wants_json(self, arguments: Sequence[str]) -> bool:
        """True if the arguments ask for JSON, even if parsing has failed before."""
        if self.form is not None:
            return self.form is Format.JSON
        asked = list(pairwise(arguments))
        return (
            "--json" in arguments
            or any(text in ("--output=json", "-ojson") for text in arguments)
            or ("--output", "json") in asked
            or ("-o", "json") in asked
        )

    def say(self, text: str) -> None:
        """Print a line for the person, unless --quiet is given."""
        if not self.quiet:
            say(text)

    def show(self, document: object, rows: Sequence[Row]) -> None:
        """Print the result of a command."""
        self.printed_document = True
        show(self.format, document, rows)

    def show_one(self, document: object, facts: Row) -> None:
        """Print a result that is one thing: as a table, one fact per line."""
        self.printed_document = True
        if self.format is Format.TABLE:
            write(facts_text(facts))
        else:
            show(self.format, document, [facts])

    def show_result(self, facts: Row) -> None:
        """Print the result of a command for programs; people have read its messages."""
        if self.format is not Format.TABLE:
            self.show(facts, [facts])

    def proceed(self, what: str, name: str, dry_run: bool, yes: bool) -> bool:
        """True if the command shall do `what`: not in a dry run, else only if the person types
        `name` or said --yes."""
        if dry_run:
            self.say(f"dry run, nothing was changed: {what}")
        else:
            self.confirm(what, name, yes)
        return not dry_run

    def confirm(self, what: str, name: str, yes: bool) -> None:
        """Raise `click.UsageError` unless the person types `name` or said --yes."""
        if yes:
            return
        if self.no_input or not sys.stdin.isatty():
            raise click.UsageError(f"{what} There is no terminal to confirm it: add --yes.")
        say(what)
        typed = click.prompt("Type its name to go on", default="", show_default=False, err=True)
        if typed != name:
            raise click.UsageError("The name does not match; nothing was changed.")


def answering(urls: str, tls: "ClientTls | None" = None) -> str:
    """These URLs, beginning with one that answers. Raises `ConfigError`, `Unavailable`, which say
    at once, and best, what is wrong with the last of them."""
    from tms.cli.checks.probe import Who, ask

    several = urls.split(",")
    for number, url in enumerate(several):
        answer = ask(url, "/", _FIRST_ANSWER_S, tls)
        if answer.who is Who.TMS:
            return ",".join(several[number:] + several[:number])
    if answer.who in (Who.BAD_URL, Who.TLS, Who.PLAIN, Who.BAD_CERTIFICATE):
        raise ConfigError(answer.found, next=answer.next)
    raise Unavailable(answer.found, next=answer.next)


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were typed."""
    return {name: value for name, value in settings.items() if value is not None}


def changes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were typed. Raises `click.UsageError` if there are none."""
    changes = given(settings)
    if not changes:
        raise click.UsageError("Nothing to change was given.")
    return changes


def seconds_of(ms: int | None) -> float | None:
    """Milliseconds as seconds."""
    return None if ms is None else ms / 1_000


def session_of(ctx: click.Context) -> Session:
    """The session of this run."""
    return ctx.ensure_object(Session)


class Shared(click.Command):
    """A command that also takes the options of `_shared`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {name for param in own for name in param.opts}
        return [*own, *(option for option in _shared() if not taken & set(option.opts))]


class CommandGroup(Shared, click.Group):
    """A group of commands that all take the shared options."""


def session_command(
    name: str, group: click.Group | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator that makes a command, of a group or by itself, of a function that takes the
    session and then its own parameters. Its docstring is the command's help."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        command = click.command(name, cls=Shared)(click.pass_obj(function))
        if group is not None:
            group.add_command(command)
        return command

    return decorate


def _shared() -> list[click.Option]:
    def keep(field: str, convert: Any = None) -> Any:
        def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
            if value is not None and value is not False:
                setattr(session_of(ctx), field, convert(value) if convert else value)

        return callback

    def option(*names: str, keep: Any, **kwargs: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=keep, **kwargs)

    forms = click.Choice([form.value for form in Format])
    return [
        option("--url", keep=keep("url"), help=f"Service to talk to. [TMS_URL; {URL_DEFAULT}]"),
        option(
            "--data",
            keep=keep("data", Path),
            type=click.Path(file_okay=False),
            help="Data directory to open in this process instead. [TMS_DATA]",
        ),
        option(
            "--context",
            keep=keep("context"),
            type=ContextType(),
            help="Saved context: a service and its token; see `tms ctx`. [TMS_CONTEXT]",
        ),
        option(
            "--token-file",
            keep=keep("token_file", Path),
            type=click.Path(dir_okay=False),
            help="File with the token for the service. [TMS_TOKEN_FILE, TMS_TOKEN]",
        ),
        option("--ca", keep=keep("ca"), metavar="FILE", help="CA to trust with https. [TMS_CA]"),
        option(
            "--cert",
            keep=keep("cert"),
            metavar="FILE",
            help="Certificate to show the service. [TMS_CERT]",
        ),
        option("--key", keep=keep("key"), metavar="FILE", help="Its private key. [TMS_KEY]"),
        option("-o", "--output", type=forms, keep=keep("form", Format), help="[table]"),
        option("--json", "as_json", is_flag=True, keep=keep("form", lambda _: Format.JSON)),
        option("-q", "--quiet", is_flag=True, keep=keep("quiet"), help="Print errors only."),
        option("--no-input", is_flag=True, keep=keep("no_input"), help="Never ask."),
    ]


class ContextType(click.ParamType[str]):
    """The name of a context; completes with saved names."""

    name = "context"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from tms.cli.contexts import Contexts

        try:
            names = Contexts(os.environ).names()
        except TMSError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


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
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            self.fail(f"A size is a number of bytes, or one with K, M, G or T, got {value!r}.")
        return int(match[1]) * _UNITS[match[2].upper()]


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


def settings(*options: tuple[str, click.ParamType[Any], str]) -> Callable[[F], F]:
    """A decorator that adds options: their names, type and help. The value of an option that is not
    typed is None."""

    def decorate(function: F) -> F:
        for names, kind, text in reversed(options):
            function = click.option(*names.split(), type=kind, help=text)(function)
        return function

    return decorate


topic_argument = click.argument("topic", type=TOPIC)
group_argument = click.argument("group", type=GROUP)
namespace_option = click.option("-n", "--namespace", default="default", help="[default]")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would change.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
