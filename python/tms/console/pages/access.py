"""Access: principals with their tokens, sessions, grants and quotas, and why one may do something.

* All of it needs `manage access`; other visitors see their own identity.
* The text of a new token is in the answer to the form that made it, and nowhere else.
"""

import asyncio
import math
from collections import Counter
from typing import NamedTuple

from tms.console.commands import SameAs
from tms.console.pages.lists import SHOWN, SHOWN_MAX, ListPage
from tms.console.visit import Notice, PageAnswer, PageRoute, Redirect, Visit, WebPage, path_of
from tms.errors import Invalid, NotFound
from tms.model.access import EVERYBODY, VERBS, Access, Quota

_DAY_S = 86_400
_RATES = ("requests_s", "bytes_in_s", "bytes_out_s")


class PrincipalRow(NamedTuple):
    """A principal in the list, with the numbers of what it has."""

    name: str
    tokens: int
    sessions: int
    grants: int
    quotas: int  # 0 or 1


async def show_access(visit: Visit) -> PageAnswer:
    """The visitor's identity, and for administrators a page of the principals."""
    may_manage = visit.may(Access.MANAGE, "access")
    me = await visit.ask("access.whoami")
    listing = await _principals(visit) if may_manage else None
    values = {"me": me, "may_manage": may_manage, "listing": listing, "everybody": EVERYBODY}
    return WebPage("access.html", values)


async def _principals(visit: Visit) -> ListPage:
    """The page of principals that a visit asks for (`after`, `limit`, `search`)."""
    limit = visit.number("limit", SHOWN, 1, SHOWN_MAX)
    after = visit.asked("after")
    search = visit.asked("search").strip()
    tokens, sessions, grants, quotas = await asyncio.gather(
        visit.ask("access.list_tokens"),
        visit.ask("access.list_sessions"),
        visit.ask("access.list_grants"),
        visit.ask("access.list_quotas"),
    )
    counts = [Counter(one.principal for one in some) for some in (tokens, sessions, grants, quotas)]
    names = sorted({name for count in counts for name in count if name > after and search in name})
    rows = [PrincipalRow(name, *(count[name] for count in counts)) for name in names[:limit]]
    next_page = visit.address(after=rows[-1].name) if len(names) > limit else ""
    return ListPage(rows, next_page, visit.address(after=None) if after else "")


async def show_principal(visit: Visit, principal: str) -> PageAnswer:
    """Tokens, sessions, grants and quota of a principal, and the answer to "may it"."""
    tokens, sessions, grants, quotas = await asyncio.gather(
        visit.ask("access.list_tokens"),
        visit.ask("access.list_sessions"),
        visit.ask("access.list_grants", principal=principal),
        visit.ask("access.list_quotas"),
    )
    quota = next((one for one in quotas if one.principal == principal), None)
    verb = visit.asked("verb", "consume")
    resource = visit.asked("resource").strip()
    decision = None
    if resource:
        asked = {"principal": principal, "verb": verb, "resource": resource}
        decision = await visit.ask("access.explain", **asked)
    granting = {"principal": principal, "verb": "consume", "pattern": "topic:NAMESPACE:TOPIC"}
    values = {
        "name": principal,
        "at": path_of("access", "principals", principal),
        "tokens": [one for one in tokens if one.principal == principal],
        "sessions": [one for one in sessions if one.principal == principal],
        "grants": grants,
        "quota": quota or Quota(principal),
        "has_quota": quota is not None,
        "everybody": EVERYBODY,
        "verbs": VERBS,
        "verb": verb,
        "resource": resource,
        "decision": decision,
        "same": visit.same_as(
            ["grant", "add", *granting.values()], visit.question("access.add_grant", granting)
        ),
        "same_quota": _bounding(visit, quota or Quota(principal, requests_s=100.0)),
    }
    return WebPage("access_principal.html", values)


def _bounding(visit: Visit, quota: Quota) -> SameAs:
    """The command and the request that set a quota."""
    rates = {name: getattr(quota, name) for name in _RATES}
    options = [
        word
        for name, rate in rates.items()
        if rate is not None
        for word in (f"--{name.removesuffix('_s').replace('_', '-')}", f"{rate:.15g}")
    ]
    question = visit.question("access.set_quota", {"principal": quota.principal, **rates})
    return visit.same_as(["quota", "set", quota.principal, *options], question)


# -- tokens ----------------------------------------------------------------------------------------


async def create_token(visit: Visit) -> PageAnswer:
    """Make a token, and show it this once."""
    principal = visit.given("principal").strip()
    days = _number(visit, "days")
    expires_s = None if days is None else days * _DAY_S
    question = visit.question(
        "access.create_token", {"principal": principal, "expires_s": expires_s}
    )
    new = await visit.put(question)
    expires = () if days is None else ("--expires", f"{days:g}d")
    same = visit.same_as(["token", "create", principal, *expires], question)
    at = path_of("access", "principals", principal)
    return WebPage("access_token.html", {"new": new, "same": same, "at": at})


async def ask_to_revoke(visit: Visit, token: str) -> PageAnswer:
    """The page on which a visitor confirms that a token or session is to end."""
    tokens, sessions = await asyncio.gather(
        visit.ask("access.list_tokens"), visit.ask("access.list_sessions")
    )
    found = [one for one in (*tokens, *sessions) if one.id == token]
    if not found:
        raise NotFound(f"There is no token and no session {token!r:.40} any more.")
    same = visit.same_as(
        ["token", "revoke", token], visit.question("access.revoke_token", {"id": token})
    )
    values = {
        "one": found[0],
        "is_session": found[0] in sessions,
        "sessions": [one for one in sessions if one.token == token],
        "others": [one for one in tokens if one.principal == found[0].principal],
        "same": same,
    }
    return WebPage("access_revoke.html", values)


async def revoke(visit: Visit, token: str) -> PageAnswer:
    """Revoke a token, or end a session, whose id was typed."""
    visit.require_typed(token)
    await visit.ask("access.revoke_token", id=token)
    return Redirect(path_of("access"), Notice(f"{token} is not valid any more."))


# -- grants and quotas -----------------------------------------------------------------------------


async def add_grant(visit: Visit, principal: str) -> PageAnswer:
    """Let a principal do something."""
    made = await visit.ask("access.add_grant", **_grant_of(visit, principal))
    who = "Everybody" if principal == EVERYBODY else principal
    return _back_to(principal, f"{who} may {made.verb} {made.pattern}.")


async def ask_to_remove_grant(visit: Visit, principal: str) -> PageAnswer:
    """The page on which a visitor confirms that a grant is to be removed."""
    grant = {
        "principal": principal,
        "verb": visit.asked("verb"),
        "pattern": visit.asked("pattern"),
    }
    question = visit.question("access.remove_grant", grant)
    values = {"grant": grant, "same": visit.same_as(["grant", "remove", *grant.values()], question)}
    return WebPage("access_grant.html", values)


async def remove_grant(visit: Visit, principal: str) -> PageAnswer:
    """Remove a grant."""
    grant = _grant_of(visit, principal)
    await visit.ask("access.remove_grant", **grant)
    return _back_to(principal, f"The grant {' '.join(grant.values())} is removed.")


async def set_quota(visit: Visit, principal: str) -> PageAnswer:
    """Bound the rates of a principal; without any rate, bound it no more."""
    rates = {name: _number(visit, name) for name in _RATES}
    if all(rate is None for rate in rates.values()):
        await visit.ask("access.remove_quota", principal=principal)
        return _back_to(principal, f"{principal} has no quota of its own any more.")
    await visit.ask("access.set_quota", principal=principal, **rates)
    return _back_to(principal, f"The quota of {principal} is set.")


def _grant_of(visit: Visit, principal: str) -> dict[str, str]:
    pattern = visit.given("pattern").strip()
    return {"principal": principal, "verb": visit.given("verb"), "pattern": pattern}


def _back_to(principal: str, done: str) -> Redirect:
    return Redirect(path_of("access", "principals", principal), Notice(done))


def _number(visit: Visit, name: str) -> float | None:
    """A number in a field of the form; None if it is empty. Raises `Invalid`."""
    text = visit.given(name).strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):  # JSON would send null, which is "no bound"
        raise Invalid(f"{name} is a number, got {text!r:.40}.", field=name)
    return value


_ACCESS = path_of("access")
_PRINCIPAL = f"{_ACCESS}/principals/{{principal}}"
_TOKEN = f"{_ACCESS}/tokens/{{token}}"
ROUTES = (
    PageRoute("GET", _ACCESS, show_access),
    PageRoute("POST", f"{_ACCESS}/tokens", create_token),
    PageRoute("GET", f"{_TOKEN}/revoke", ask_to_revoke),
    PageRoute("POST", f"{_TOKEN}/revoke", revoke),
    PageRoute("GET", _PRINCIPAL, show_principal),
    PageRoute("POST", f"{_PRINCIPAL}/grants", add_grant),
    PageRoute("GET", f"{_PRINCIPAL}/remove-grant", ask_to_remove_grant),
    PageRoute("POST", f"{_PRINCIPAL}/remove-grant", remove_grant),
    PageRoute("POST", f"{_PRINCIPAL}/quota", set_quota),
)
