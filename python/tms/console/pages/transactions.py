"""Transactions: those in progress and what they hold up, one of them, ending it, and pruning the
list of invalid ones."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tms.console.pages.topics import TRANSACTIONS
from tms.console.rendering import counted
from tms.console.visit import (
    DONE,
    NUMBER_CHARS_MAX,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import Invalid
from tms.model.access import Access
from tms.model.quantity import duration_text
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import parse_retention
from tms.model.transaction import TransactionInfo

SHOWN = 200
TOPICS_SHOWN = 3  # of a transaction in the list
OPEN = "open"
SERVICE = "service"  # the resource
PRUNED_AGE = "50h"  # as `tms tx prune`


class TransactionRow(NamedTuple):
    """A transaction in a table. `began_ms`: as its id says; `messages_since_ms`: of the first
    message that readers wait for; `topics`: some in which they do, and the number of the others."""

    info: TransactionInfo
    began_ms: int
    messages_since_ms: int | None
    topics: Sequence[str]
    topics_more: int


async def show_transactions(visit: Visit) -> PageAnswer:
    """The transactions in progress, oldest first, and counts of the others."""
    (open_ones, error), (loads, _) = await asyncio.gather(
        visit.tried_if(Access.OPERATE, TRANSACTIONS, "transactions.open"),
        visit.tried_if(Access.OBSERVE, SERVICE, "glance.instances"),
    )
    loads = [one for one in loads or () if one.answers]
    values = {
        "rows": [_row(one) for one in (open_ones or ())[:SHOWN]],
        "more": max(0, len(open_ones or ()) - SHOWN),
        "error": error,
        "invalid": max((one.transactions_invalid for one in loads), default=None),
        "may_operate": visit.may(Access.OPERATE, TRANSACTIONS),
        "age": PRUNED_AGE,
    }
    return WebPage("transactions.html", values)


async def show_transaction(visit: Visit, id: str) -> PageAnswer:
    """A transaction: its state, and what it holds up."""
    info = await visit.ask("transactions.describe", id=_id(id))
    may_operate = visit.may(Access.OPERATE, TRANSACTIONS)
    values = {
        "row": _row(info),
        "is_open": info.outcome == OPEN,
        "may_operate": may_operate,
        "may_abort": may_operate or (info.client is not None and info.client == visit.principal),
    }
    return WebPage("transaction.html", values)


async def ask_to_end(visit: Visit, id: str, how: str) -> PageAnswer:
    """The page on which a visitor confirms that a transaction is to be aborted or invalidated."""
    info = await visit.ask("transactions.describe", id=_id(id))
    question = visit.question(f"transactions.{how}", {"id": info.transaction_id})
    confirmed = [] if how == "abort" else ["--yes"]
    command = ["tx", how, str(info.transaction_id), *confirmed]
    values = {"row": _row(info), "how": how, "same": visit.same_as(command, question)}
    return WebPage("transaction_end.html", values)


async def ask_to_abort(visit: Visit, id: str) -> PageAnswer:
    """As `ask_to_end`."""
    return await ask_to_end(visit, id, "abort")


async def ask_to_invalidate(visit: Visit, id: str) -> PageAnswer:
    """As `ask_to_end`."""
    return await ask_to_end(visit, id, "invalidate")


async def abort(visit: Visit, id: str) -> PageAnswer:
    """Abort a transaction whose id was typed."""
    visit.require_typed(id)
    return _ended(await visit.ask("transactions.abort", id=_id(id)))


async def invalidate(visit: Visit, id: str) -> PageAnswer:
    """Invalidate a transaction whose id was typed."""
    visit.require_typed(id)
    return _ended(await visit.ask("transactions.invalidate", id=_id(id)))


def _ended(info: TransactionInfo) -> Redirect:
    text = f"The transaction {info.transaction_id} is {info.outcome}."
    return Redirect(path_of("transactions", info.transaction_id), Notice(text, DONE))


async def ask_to_prune(visit: Visit) -> PageAnswer:
    """The page on which a visitor confirms that old transactions leave the invalid list."""
    loads, _ = await visit.tried_if(Access.OBSERVE, SERVICE, "glance.instances")
    age = visit.asked("older_than", PRUNED_AGE)
    before_ms = _before_ms(visit, age)
    values = {
        "age": age,
        "before_ms": before_ms,
        "invalid": max((one.transactions_invalid for one in loads or ()), default=None),
        "may_operate": visit.may(Access.OPERATE, TRANSACTIONS),
        "same": visit.same_as(
            ["tx", "prune", "--older-than", age, "--yes"],
            visit.question("transactions.prune", {"before_ms": before_ms}),
        ),
    }
    return WebPage("transactions_prune.html", values)


async def prune(visit: Visit) -> PageAnswer:
    """Prune the invalid list up to the time that the form has shown."""
    visit.require_typed("prune")
    text = visit.given("before_ms")
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX):
        raise Invalid(f"before_ms is a time in ms since 1970, got {text!r:.40}.", field="before_ms")
    pruned = await visit.ask("transactions.prune", before_ms=int(text))
    done = f"Took {counted(pruned, 'transaction')} off the invalid list."
    return Redirect(path_of("transactions"), Notice(done, DONE))


def _before_ms(visit: Visit, age: str) -> int:
    """The time that is so long ago. Raises `Invalid`."""
    age_ms = parse_retention(age, "older_than")
    if age_ms is None:
        raise Invalid(
            f"older_than is a duration such as {duration_text(180_000_000)}, got {age!r:.40}.",
            field="older_than",
        )
    return max(0, visit.now_ms - age_ms)


def _row(info: TransactionInfo) -> TransactionRow:
    since: Sequence[int] = [one.since_ms for one in info.held]
    began_ms = info.transaction_id // POINTERS_PER_MS
    topics = sorted({one.topic for one in info.held})
    shown = topics[:TOPICS_SHOWN]
    return TransactionRow(info, began_ms, min(since, default=None), shown, len(topics) - len(shown))


def _id(text: str) -> int:
    """The id in a path. Raises `Invalid`."""
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX):
        raise Invalid(
            f"A transaction is up to {NUMBER_CHARS_MAX} digits, got {text!r:.40}.", field="id"
        )
    return int(text)


_TRANSACTION = "/console/transactions/{id}"
ROUTES = (
    PageRoute("GET", "/console/transactions", show_transactions),
    PageRoute("GET", "/console/transactions/prune", ask_to_prune),
    PageRoute("POST", "/console/transactions/prune", prune),
    PageRoute("GET", _TRANSACTION, show_transaction),
    PageRoute("GET", f"{_TRANSACTION}/abort", ask_to_abort),
    PageRoute("POST", f"{_TRANSACTION}/abort", abort),
    PageRoute("GET", f"{_TRANSACTION}/invalidate", ask_to_invalidate),
    PageRoute("POST", f"{_TRANSACTION}/invalidate", invalidate),
)
