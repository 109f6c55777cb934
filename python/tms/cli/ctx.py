"""`tms ctx …`: services saved under names, and the default one.

No command prints a token: `ls` and `show` say that there is one, and name its file.
"""

import os
import sys
from typing import Annotated

import click

from tms.cli.contexts import Context, Contexts, token_in
from tms.cli.declaring import ARGUMENT
from tms.cli.output import Row
from tms.cli.parameters import DryRunOption, YesOption, session_command
from tms.cli.session import CommandGroup, ContextType, Session, given
from tms.client.http.addresses import ServiceAddresses
from tms.client.http.credentials import token_of
from tms.errors import ConfigError, Invalid
from tms.runtime.tls import ClientTls

STDIN_TOKEN_BYTES_MAX = 16_384

NameParameter = Annotated[str, ContextType()]


@click.group("ctx", cls=CommandGroup)
def command() -> None:
    """Save services under names, and select the one that commands talk to.

    \b
      tms ctx save prod --url https://tms.example:7070 --token-file ~/ann.token
      tms ctx select prod
      tms topic list
      tms topic list --context test
    """


@session_command("save", command)
def save(
    session: Session,
    name: NameParameter,
    token: Annotated[
        str | None, "The token itself, which is kept; `-`: read it from standard input."
    ] = None,
) -> None:
    """Make the context NAME of --url, --token-file or --token, --ca, --cert and --key, or change
    it: settings that are not given stay.

    A token that is typed stands in the shell's history; `--token -` and --token-file avoid that.

    \b
      tms token create ann | tms ctx save prod --url https://tms.example:7070 --token -
    """
    if session.data is not None or session.context is not None:
        raise click.UsageError("ctx save takes --url, not --data or --context.")
    if token is not None and session.token_file is not None:
        raise click.UsageError("A token is given twice; choose one of --token and --token-file.")
    files = {
        "token_file": session.token_file,
        "ca": session.ca,
        "cert": session.cert,
        "key": session.key,
    }
    changes = {field: os.path.abspath(path) for field, path in given(files).items()}
    if session.url is not None:
        changes["url"] = session.url
    kept = _typed(token)
    if not changes and kept is None:
        raise click.UsageError("Nothing to save was given: say --url, --token-file or others.")
    context = Contexts(os.environ).save(name, changes, kept, _check)
    session.say(f"The context {name} is saved; `tms ctx select {name}` selects it.")
    session.show_result(_facts(name, context))


@session_command("select", command)
def select(session: Session, name: NameParameter) -> None:
    """Make NAME the default context of commands."""
    Contexts(os.environ).select(name)
    session.say(f"The context {name} is selected.")
    session.show_result({"name": name, "selected": True})


@session_command("ls", command)
def ls(session: Session) -> None:
    """All contexts; the selected one has a `*`."""
    contexts = Contexts(os.environ)
    names = contexts.names()
    selected = contexts.selected()
    documents, rows = [], []
    for name in names:
        try:
            context, _ = contexts.load(name)
        except ConfigError as error:  # the others are still there
            session.say(f"{name}: {error.message} ({error.details.get('next')})")
            continue
        facts = _facts(name, context)
        documents.append({**facts, "selected": name == selected})
        rows.append({"": "*" if name == selected else "", **facts})
    if not names:
        session.say("There is no context; `tms ctx save` makes one.")
    if selected is not None and selected not in names:
        session.say(f"The selected context {selected} is gone; select another one.")
    session.show(documents, rows)


@session_command("show", command)
def show(session: Session, name: Annotated[NameParameter | None, ARGUMENT] = None) -> None:
    """Show the settings of the context NAME; without one, of --context, TMS_CONTEXT or the selected
    context."""
    contexts = Contexts(os.environ)
    meant = name or session.context or os.environ.get("TMS_CONTEXT") or contexts.selected()
    if meant is None:
        raise ConfigError(
            "No context is selected.", next="tms ctx select NAME; `tms ctx ls` lists the contexts"
        )
    context, _ = contexts.load(meant)
    facts = {**_facts(meant, context), "selected": meant == contexts.selected()}
    session.show_one(facts, facts)


@session_command("rm", command)
def rm(
    session: Session, name: NameParameter, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Remove the context NAME, with the token that is kept in it."""
    contexts = Contexts(os.environ)
    contexts.require(name)
    what = f"The context {name} will be gone, and the token that is kept in it."
    if not session.proceed(what, name, dry_run, yes):
        return
    contexts.remove(name)
    session.say(f"The context {name} is removed.")
    session.show_result({"name": name, "removed": True})


def _typed(token: str | None) -> str | None:
    """The token of the option; `-` reads it from standard input."""
    if token == "-":
        token = sys.stdin.read(STDIN_TOKEN_BYTES_MAX).strip()
    if token == "":
        raise Invalid("The token is empty; leave --token out where none is needed.", field="token")
    return token if token is None else token_of(token)


def _check(context: Context, token: str | None) -> None:
    """Raise for what cannot be used: a wrong URL, a file that is missing or no certificate."""
    if not context.keeps_token:
        token_of(token_in(context, token) or "")
    if not context.url.startswith(("zookeeper://", "zookeepers://")):
        ServiceAddresses(context.url)
    ClientTls(context.ca, context.cert, context.key).check(context.url)


def _facts(name: str, context: Context) -> Row:
    """A context as people see it; its token never."""
    token = "kept" if context.keeps_token else context.token_file or None
    return {
        "name": name,
        "url": context.url,
        "token": token,
        "ca": context.ca or None,
        "cert": context.cert or None,
        "key": context.key or None,
    }
