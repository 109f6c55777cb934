"""The overview: what is wrong now, rates, storage, instances, and the last hour."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tms.console.attention import Findings, faults_in
from tms.console.charts import BYTES, BYTES_PER_S, COUNT, PER_S, Unit
from tms.console.pages.hours import charts_of_service
from tms.console.visit import ROOT, PageAnswer, PageRoute, Redirect, Visit, WebPage
from tms.errors import Forbidden, TMSError
from tms.model.access import Access
from tms.model.group import GroupSummary
from tms.model.history import DISK, DISK_USED, LAG, History, Values
from tms.model.queue import QueueSummary
from tms.model.topic import DEFAULT_NAMESPACE, TopicName

_SEEN = Access.OBSERVE, "service"
LOOKED = 100  # groups and queues of a namespace, by name
GROWTH_LOOKED = 5  # groups whose last hour is looked at


class _Lists(NamedTuple):
    """Groups and queues, None if they are unknown, and the time at which they were seen; 0: never,
    None: now."""

    groups: Sequence[GroupSummary] | None = None
    queues: Sequence[QueueSummary] | None = None
    errors: Sequence[TMSError | None] = ()
    seen_ms: int | None = None


async def show_overview(visit: Visit) -> PageAnswer:
    """The state of the service with the groups and queues that need attention. Visitors that may
    not observe the service see those of a namespace."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    may_observe = visit.may(*_SEEN)
    (ready, view, loads, history), lists = await asyncio.gather(
        asyncio.gather(
            visit.tried("service.ready"),
            visit.tried("cluster.view"),
            visit.tried_if(*_SEEN, "glance.instances"),
            visit.tried_if(*_SEEN, "history.service"),
        ),
        _backlogs(visit) if may_observe else _lists(visit, namespace),
    )
    found = Findings(ready[0], loads[0], view[0], history[0], lists.groups, lists.queues)
    found = found._replace(lags=await _lags(visit, lists.groups or ()))
    errors = [error for _, error in (ready, view, loads, history)]
    values = {
        "namespace": namespace,
        "faults": faults_in(found),
        "errors": _said_once([*errors, *lists.errors]),
        "seen_ms": lists.seen_ms,
        "found": found,
        "facts": [] if found.history is None else _facts(found.history),
        "charts": [] if found.history is None else charts_of_service(found.history),
        "may_observe": may_observe,
        "looked": LOOKED,
    }
    return WebPage("overview.html", values)


async def _backlogs(visit: Visit) -> _Lists:
    """The groups and queues that need attention, in all namespaces."""
    found, error = await visit.tried("history.backlogs")
    if found is None:
        return _Lists(errors=[error])
    return _Lists(found.groups, found.queues, seen_ms=found.seen_ms)


async def _lists(visit: Visit, namespace: str) -> _Lists:
    """The first groups and queues of a namespace."""
    asked = {"namespace": namespace, "limit": LOOKED}
    groups, queues = await asyncio.gather(
        visit.tried("glance.groups", **asked), visit.tried("glance.queues", **asked)
    )
    return _Lists(groups[0], queues[0], [groups[1], queues[1]])


async def _lags(visit: Visit, groups: Sequence[GroupSummary]) -> list[tuple[GroupSummary, Values]]:
    """The last hour of the groups that are furthest behind."""
    behind = sorted((one for one in groups if one.lag), key=lambda one: -(one.lag or 0))
    largest = behind[:GROWTH_LOOKED]
    answers = await asyncio.gather(*(_hour_of(visit, one) for one in largest))
    return [
        (one, history.series[LAG])
        for one, (history, _) in zip(largest, answers, strict=True)
        if history is not None
    ]


async def _hour_of(visit: Visit, one: GroupSummary) -> tuple[History | None, TMSError | None]:
    name = TopicName.parse(one.topic)
    resource = f"group:{name.namespace}:{name.topic}/{one.group}"
    asked = {"topic": name, "group": one.group}
    return await visit.tried_if(Access.OBSERVE, resource, "history.group", **asked)


def _said_once(errors: Iterable[TMSError | None]) -> list[TMSError]:
    """Errors for which a part is missing, each once. Rights that are missing are no errors: what
    a visitor may not see is not there."""
    missing = {one.message: one for one in errors if one is not None}
    return [one for one in missing.values() if not isinstance(one, Forbidden)]


def _facts(history: History) -> list[tuple[str, str]]:
    """The newest values, each with its meaning."""
    now = {name: values[-1] if values else None for name, values in history.series.items()}
    facts = [
        (_written(now.get(name), unit), label)
        for name, unit, label in (
            ("messages_in_s", PER_S, "messages published"),
            ("bytes_in_s", BYTES_PER_S, "published"),
            ("bytes_out_s", BYTES_PER_S, "to clients"),
            (LAG, COUNT, "messages of lag"),
            ("transactions_open", COUNT, "open transactions"),
        )
    ]
    used = now.get(DISK_USED)
    total = now.get(DISK)
    if used is not None and total is not None:
        facts.append((BYTES.form(used), f"of {BYTES.form(total)} of the disk used"))
    return facts


def _written(value: float | None, unit: Unit) -> str:
    return "?" if value is None else unit.form(value)


async def lead_here(_: Visit) -> PageAnswer:
    """The overview, for who typed its address without the slash."""
    return Redirect(f"{ROOT}/")


ROUTES = (
    PageRoute("GET", f"{ROOT}/", show_overview),
    PageRoute("GET", ROOT, lead_here),
)
