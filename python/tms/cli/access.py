"""`tms token …`, `tms grant …`, `tms quota …`, `tms access …`: tokens, permissions and quotas.

`tms token create` prints a token once, alone on standard output, so that a shell can put it into a
file or a variable. A new file is closed to other users.
"""

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import click
import msgspec

from tms.api.access import AccessApi
from tms.cli.declaring import ARGUMENT
from tms.cli.operations import Given, runs
from tms.cli.output import Format, Row
from tms.cli.parameters import SIZE, session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.model.access import (
    EVERYBODY,
    AccessDecision,
    Grant,
    Identity,
    NewToken,
    Quota,
    SessionInfo,
    TokenInfo,
)


@click.group("token", cls=CommandGroup)
def token() -> None:
    """Create, list and revoke the tokens with which programs authenticate."""


@runs(
    token,
    "create",
    AccessApi.create_token,
    help={"expires_s": "After this time, such as 90d [never]."},
)
def create(session: Session, new: NewToken, given: Given) -> None:
    """Create a token of PRINCIPAL, a program or a person, and print it: it is shown this once.

    \b
      tms token create billing --expires 90d > billing.token
      TMS_TOKEN_FILE=billing.token tms consume orders
    """
    with suppress(OSError, ValueError):  # no file
        close_new_file(sys.stdout.fileno())
    session.say(f"The token {new.id} of {new.principal} is shown this once:")
    if session.format is Format.TABLE:
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


@runs(token, "list", AccessApi.list_tokens)
def list_tokens(session: Session, tokens: list[TokenInfo], given: Given) -> None:
    """List the tokens, without their secrets."""
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


@runs(token, "sessions", AccessApi.list_sessions)
def list_sessions(session: Session, sessions: list[SessionInfo], given: Given) -> None:
    """List the sessions of people at the console. Each ends with the token that it was made
    with."""
    if not sessions:
        session.say("There is no session.")
    rows: list[Row] = [
        {
            "id": one.id,
            "principal": one.principal,
            "token": one.token or "none: a JWT or a certificate",
            "kind": "one-time link" if one.is_link else "session",
            "created": time_text(one.created_ms),
            "expires": time_text(one.expires_ms),
        }
        for one in sessions
    ]
    session.show(msgspec.to_builtins(sessions), rows)


@runs(token, "revoke", AccessApi.revoke_token)
def revoke(session: Session, _: None, given: Given) -> None:
    """Revoke the token with this ID, the first part behind `tms_`, and end its sessions; or end
    the session with this ID."""
    session.say(f"The token {given['id']} is revoked.")
    session.show_result({**given, "revoked": True})


@click.group("grant", cls=CommandGroup)
def grant() -> None:
    """Add, list and remove permissions of principals.

    \b
      tms grant add billing consume topic:orders
      tms grant add billing consume group:orders/billing
      tms grant add shop publish 'topic:shop-*'
      tms grant add '*' observe namespace:default
    """


@runs(grant, "add", AccessApi.add_grant)
def add(session: Session, made: Grant, given: Given) -> None:
    """Let PRINCIPAL (`*`: all that are known) do VERB with the resources that PATTERN covers."""
    who = "Everybody" if made.principal == EVERYBODY else made.principal
    session.say(f"{who} may {made.verb} {made.pattern}.")
    session.show_result(msgspec.to_builtins(made))


@session_command("list", grant)
def list_grants(session: Session, principal: Annotated[str | None, ARGUMENT] = None) -> None:
    """List all grants, or those of PRINCIPAL."""
    with session.bus() as bus:
        grants = bus.admin.access.list_grants(principal)
    _list(session, "grant", grants)


@runs(grant, "remove", AccessApi.remove_grant)
def remove(session: Session, _: None, given: Given) -> None:
    """Remove a grant, as `tms grant list` shows it."""
    session.say("The grant is removed.")
    session.show_result(given)


@click.group("quota", cls=CommandGroup)
def quota() -> None:
    """Set, list and remove the rates that principals may not exceed.

    \b
      tms quota set billing --requests 100 --bytes-out 10M
      tms quota set '*' --requests 1000
    """


@session_command("set", quota)
def set_quota(
    session: Session,
    principal: str,
    requests: Annotated[float | None, "Requests a second."] = None,
    bytes_in: Annotated[int | None, SIZE, "Bytes a second that come in, such as 10M."] = None,
    bytes_out: Annotated[int | None, SIZE, "Bytes a second that go out."] = None,
) -> None:
    """Bound the requests of PRINCIPAL (`*`: each that has no quota of its own) to an instance, on
    average over a second; this replaces its earlier quota."""
    with session.bus() as bus:
        made = bus.admin.access.set_quota(principal, requests, bytes_in, bytes_out)
    session.show_one(msgspec.to_builtins(made), msgspec.to_builtins(made))


@runs(quota, "list", AccessApi.list_quotas)
def list_quotas(session: Session, quotas: list[Quota], given: Given) -> None:
    """List all quotas."""
    _list(session, "quota", quotas)


def _list(session: Session, noun: str, items: Sequence[Grant | Quota]) -> None:
    if not items:
        session.say(f"There is no {noun}.")
    rows: list[Row] = [msgspec.to_builtins(one) for one in items]
    session.show(rows, rows)


@runs(quota, "remove", AccessApi.remove_quota)
def remove_quota(session: Session, _: None, given: Given) -> None:
    """Remove the quota of PRINCIPAL."""
    session.say(f"{given['principal']} has no quota any more.")
    session.show_result({**given, "removed": True})


@click.group("access", cls=CommandGroup)
def access() -> None:
    """Show your identity, and why a request is allowed or not."""


@runs(access, "whoami", AccessApi.whoami)
def whoami(session: Session, identity: Identity, given: Given) -> None:
    """Show the name that the service knows you by, and your grants."""
    rows: list[Row] = [{"verb": one.verb, "pattern": one.pattern} for one in identity.grants]
    session.say(f"You are {identity.principal or 'anonymous: the service requires no token'}.")
    session.show(msgspec.to_builtins(identity), rows)


@runs(access, "explain", AccessApi.explain)
def explain(session: Session, decision: AccessDecision, given: Given) -> None:
    """Say if PRINCIPAL may do VERB with RESOURCE, and which grant allows it.

    \b
      tms access explain billing consume topic:orders
    """
    why = "no grant covers it" if decision.grant is None else f"by the grant: {decision.grant}"
    session.show_one(msgspec.to_builtins(decision), {"allowed": decision.allowed, "why": why})
