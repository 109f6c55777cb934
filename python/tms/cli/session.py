"""The base of all commands: the target and the output.

* The shared options, annotated fields of `Session`, may stand before or after the command's name.
* Options win over the environment, and the environment over the selected context; see `target`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import click
from click.shell_completion import CompletionItem

from tms.cli.declaring import option
from tms.cli.output import Format, Row, facts_text, say, show, write
from tms.cli.target import URL_DEFAULT, Target, target_of
from tms.client.http.credentials import read_token, token_of
from tms.errors import ConfigError, NotFound, TMSError, Unavailable
from tms.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import tms
    from tms.client.http.transport import HttpTransport
    from tms.runtime.tls import ClientTls

_FIRST_ANSWER_S = 5.0
_FILE = MappingProxyType({"metavar": "FILE"})
_FORMS = click.Choice([form.value for form in Format])


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


@dataclass
class Session:
    """One run of `tms`: filled by the shared options while they are parsed. An annotated field is
    one of them."""

    url: Annotated[str | None, f"Service to talk to. [TMS_URL; {URL_DEFAULT}]"] = None
    data: Annotated[
        Path | None,
        click.Path(file_okay=False, path_type=Path),
        "Data directory to open in this process instead. [TMS_DATA]",
    ] = None
    context: Annotated[
        str | None,
        ContextType(),
        "Saved context: a service and its token; see `tms ctx`. [TMS_CONTEXT]",
    ] = None
    token_file: Annotated[
        Path | None,
        click.Path(dir_okay=False, path_type=Path),
        "File with the token for the service. [TMS_TOKEN_FILE, TMS_TOKEN]",
    ] = None
    ca: Annotated[str | None, _FILE, "CA to trust with https. [TMS_CA]"] = None
    cert: Annotated[str | None, _FILE, "Certificate to show the service. [TMS_CERT]"] = None
    key: Annotated[str | None, _FILE, "Its private key. [TMS_KEY]"] = None
    output: Annotated[str | None, "-o", "--output", _FORMS, "[table]"] = None
    quiet: Annotated[bool, "-q", "Print errors only."] = False
    no_input: Annotated[bool, "Never ask."] = False
    store: str | None = None  # of the commands that talk to it without a service
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
        return tms.connect(
            self.urls(url),
            outage_s=outage_s,
            token=self.token(),
            ca=self.trusted(),
            cert=self.own_certificate(),
        )

    def transport(self) -> "HttpTransport":
        """The transport of the target. Raises `ConfigError` for a data directory."""
        from tms.client.http.transport import transport_to

        return transport_to(self.urls(self.service()), token=self.token(), tls=self.tls())

    def service(self) -> str:
        """The URL of the target. Raises `ConfigError` for a data directory."""
        url, data = self.target()
        if url is None:
            raise ConfigError(
                f"The data directory {data} has neither a running service nor a cluster.",
                next="name a service with --url",
            )
        return url

    def urls(self, url: str) -> str:
        """The URLs of the instances at a URL, beginning with one that answers."""
        import tms

        tls = self.tls()
        return answering(tms.instances_at(url, tls), tls)

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
        return Format(self.output or Format.TABLE)

    def wants_json(self, arguments: Sequence[str]) -> bool:
        """True if the arguments ask for JSON, even if parsing has failed before."""
        if self.output is not None:
            return self.format is Format.JSON
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


def _shared() -> list[click.Option]:
    shared = [one for one in fields(Session) if get_origin(one.type) is Annotated]
    keep: dict[str, Any] = {"callback": _keep, "expose_value": False}
    options = [option(one.name, one.type, **keep) for one in shared]
    json = option("output", Annotated[str, "--json"], flag_value=Format.JSON.value, **keep)
    return [*options, json]


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        setattr(session_of(ctx), str(param.name), value)
