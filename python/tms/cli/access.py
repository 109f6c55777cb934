"""`tms token …`, `tms grant …`, `tms quota …`, `tms access …`: who may do what.

A token is printed once, alone on standard output, so that it can go into a file or a variable. A
new file that it goes to is closed to other users.
"""

import os
import stat
import sys
from contextlib import suppress

import click
import msgspec

from tms.cli.output import Row
from tms.cli.session import SECONDS, SIZE, CommandGroup, Session, Shared
from tms.cli.topics import time_text
from tms.model.access import EVERYBODY, VERBS, Grant

principal_argument = click.argument("principal")
verb_argument = click.argument("verb", type=click.Choice([str(verb) for verb in VERBS]))


@click.group("token", cls=CommandGroup)
def token() -> None:
    """Create, list and revoke the tokens by which programs show who they are."""


@token.command("create", cls=Shared)
@principal_argument
@click.option("--expires", type=SECONDS, help="After this time, such as 90d [never].")
@click.pass_obj
def create(session: Session, principal: str, expires: float | None) -> None:
    """Create a token of PRINCIPAL, a program or a person, and print it: it is shown this once.

    \b
      tms token create billing --expires 90d > billing.token
      TMS_TOKEN_FILE=billing.token tms consume orders
    """
    with session.bus() as bus:
        new = bus.access.create_token(principal, expires)
    with suppress(OSError, ValueError):  # no file
        close_new_file(sys.stdout.fileno())
    session.say(f"The token {new.id} of {principal} is shown this once:")
    if session.format.value == "table":
        session.printed_document = True
        click.echo(new.token)
    else:
        document = msgspec.to_builtins(new)
        session.show_one(document, document)


def close_new_file(descriptor: int) -> None:
    """Let only its user read a regular file that is still empty: a shell makes it readable by all.
    Raises `OSError`."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and not status.st_size:
        os.fchmod(descriptor, 0o600)


@token.command("list", cls=Shared)
@click.pass_obj
def list_tokens(session: Session) -> None:
    """The tokens there are, without their secrets."""
    with session.bus() as bus:
        tokens = bus.access.list_tokens()
    if not tokens:
        session.say("There is no token.")
    rows: list[Row] = [
        {
            "id": one.id,
            "principal": one.principal,
            "created": time_text(one.created_ms),
            "expires": time_text(one.expires_ms) if one.expires_ms else "never",
        }
        for one in tokens
    ]
    session.show(msgspec.to_builtins(tokens), rows)


@token.command("revoke", cls=Shared)
@click.argument("id")
@click.pass_obj
def revoke(session: Session, id: str) -> None:
    """Let the token with this ID, the first part behind `tms_`, be valid no more."""
    with session.bus() as bus:
        bus.access.revoke_token(id)
    session.say(f"The token {id} is revoked.")
    session.show_result({"id": id, "revoked": True})


@click.group("grant", cls=CommandGroup)
def grant() -> None:
    """Add, list and remove what principals may do.

    \b
      tms grant add billing consume topic:orders
      tms grant add billing consume group:orders/billing
      tms grant add shop publish 'topic:shop-*'
      tms grant add '*' observe namespace:default
    """


@grant.command("add", cls=Shared)
@principal_argument
@verb_argument
@click.argument("pattern")
@click.pass_obj
def add(session: Session, principal: str, verb: str, pattern: str) -> None:
    """Let PRINCIPAL (`*`: everybody who is known) do VERB with what PATTERN covers."""
    with session.bus() as bus:
        made = bus.access.add_grant(principal, verb, pattern)
    session.say(f"{_words(made)}.")
    session.show_result(msgspec.to_builtins(made))


@grant.command("list", cls=Shared)
@click.argument("principal", required=False)
@click.pass_obj
def list_grants(session: Session, principal: str | None) -> None:
    """All grants, or those of PRINCIPAL."""
    with session.bus() as bus:
        grants = bus.access.list_grants(principal)
    if not grants:
        session.say("There is no grant.")
    rows: list[Row] = [msgspec.to_builtins(one) for one in grants]
    session.show(rows, rows)


@grant.command("remove", cls=Shared)
@principal_argument
@verb_argument
@click.argument("pattern")
@click.pass_obj
def remove(session: Session, principal: str, verb: str, pattern: str) -> None:
    """Take a grant away, as `tms grant list` shows it."""
    with session.bus() as bus:
        bus.access.remove_grant(principal, verb, pattern)
    session.say("The grant is removed.")
    session.show_result({"principal": principal, "verb": verb, "pattern": pattern})


@click.group("quota", cls=CommandGroup)
def quota() -> None:
    """Set, list and remove how much principals may ask for.

    \b
      tms quota set billing --requests 100 --bytes-out 10M
      tms quota set '*' --requests 1000
    """


@quota.command("set", cls=Shared)
@principal_argument
@click.option("--requests", type=float, help="Requests a second.")
@click.option("--bytes-in", type=SIZE, help="Bytes a second that come in, such as 10M.")
@click.option("--bytes-out", type=SIZE, help="Bytes a second that go out.")
@click.pass_obj
def set_quota(
    session: Session,
    principal: str,
    requests: float | None,
    bytes_in: int | None,
    bytes_out: int | None,
) -> None:
    """Bound how much PRINCIPAL (`*`: each that has no quota of its own) may ask of an instance, on
    average over a second; what it had before is replaced."""
    with session.bus() as bus:
        made = bus.access.set_quota(principal, requests, bytes_in, bytes_out)
    session.show_one(msgspec.to_builtins(made), msgspec.to_builtins(made))


@quota.command("list", cls=Shared)
@click.pass_obj
def list_quotas(session: Session) -> None:
    """All quotas."""
    with session.bus() as bus:
        quotas = bus.access.list_quotas()
    if not quotas:
        session.say("There is no quota.")
    rows: list[Row] = [msgspec.to_builtins(one) for one in quotas]
    session.show(rows, rows)


@quota.command("remove", cls=Shared)
@principal_argument
@click.pass_obj
def remove_quota(session: Session, principal: str) -> None:
    """Bound PRINCIPAL no more."""
    with session.bus() as bus:
        bus.access.remove_quota(principal)
    session.say(f"{principal} has no quota any more.")
    session.show_result({"principal": principal, "removed": True})


@click.group("access", cls=CommandGroup)
def access() -> None:
    """Say who somebody is, and why something is allowed or not."""


@access.command("whoami", cls=Shared)
@click.pass_obj
def whoami(session: Session) -> None:
    """Who you are to the service, and what you may do."""
    with session.bus() as bus:
        identity = bus.access.whoami()
    rows: list[Row] = [{"verb": one.verb, "pattern": one.pattern} for one in identity.grants]
    session.say(f"You are {identity.principal or 'nobody: the service does not ask'}.")
    session.show(msgspec.to_builtins(identity), rows)


@access.command("explain", cls=Shared)
@principal_argument
@verb_argument
@click.argument("resource")
@click.pass_obj
def explain(session: Session, principal: str, verb: str, resource: str) -> None:
    """Whether PRINCIPAL may do VERB with RESOURCE, and the grant that lets it.

    \b
      tms access explain billing consume topic:orders
    """
    with session.bus() as bus:
        decision = bus.access.explain(principal, verb, resource)
    why = "no grant covers it" if decision.grant is None else f"by the grant: {decision.grant}"
    facts: Row = {"allowed": decision.allowed, "why": why}
    session.show_one(msgspec.to_builtins(decision), facts)


def _words(made: Grant) -> str:
    who = "Everybody" if made.principal == EVERYBODY else made.principal
    return f"{who} may {made.verb} {made.pattern}"
