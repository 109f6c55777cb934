"""Faults that need attention, found in what operations answer: the alerts of
docker/prometheus/alerts.yaml as far as a page can see them, without Prometheus.

    readiness, loads, view, history, groups, queues ─▶ faults, the gravest first

Each fault has a sentence, the runbook that explains it, and the page on which it is mended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tms.api.bodies import ReadinessBody
from tms.console.rendering import duration, number, size
from tms.console.visit import path_of
from tms.model.cluster import ClusterView
from tms.model.group import GroupSummary
from tms.model.history import DISK, DISK_USED, History, Values
from tms.model.lag import InstanceLoad
from tms.model.queue import QueueSummary
from tms.model.topic import TopicName

BEHIND_MS = 15 * 60_000
UNSETTLED_MS = 3_600_000
OPEN_MS = 3_600_000
BLOCKED_MS = 600_000
INVALID_MAX = 10_000
APART_MS = 1_000
GROWS = 2.0  # times as much as at the beginning of the hour
GROWN_MIN = 1_000  # messages
ERRORS_MAX = 0.01  # of requests
ERRORS_STEPS = 30  # the last five minutes
DISK_MAX = 0.9
SHOWN_MAX = 5  # of a kind; the page of the kind has all
GRAVE = "bad"
MILD = "warn"


class Fault(NamedTuple):
    """A fault. `kind`: `bad` if something does not work now, else `warn`; `runbook`: the section of
    docs/runbooks.md, empty if none is about it; `page`: the address of a page, or empty."""

    kind: str
    text: str
    runbook: str = ""
    page: str = ""


class Findings(NamedTuple):
    """The answers of operations. A part that a visitor may not see, or that failed, is None."""

    readiness: ReadinessBody | None = None
    loads: Sequence[InstanceLoad] | None = None
    view: ClusterView | None = None
    history: History | None = None
    groups: Sequence[GroupSummary] | None = None
    queues: Sequence[QueueSummary] | None = None
    lags: Sequence[tuple[GroupSummary, Values]] = ()  # of the last hour


def faults_in(findings: Findings) -> list[Fault]:
    """The faults, the grave ones first."""
    found = [
        *_of_readiness(findings.readiness),
        *_of_instances(findings.loads or (), findings.view),
        *_of_history(findings.history),
        *_of_groups(findings.groups or ()),
        *_of_lags(findings.lags),
        *_of_queues(findings.queues or ()),
    ]
    return sorted(found, key=lambda one: one.kind != GRAVE)


def _of_readiness(readiness: ReadinessBody | None) -> Iterator[Fault]:
    if readiness is None:
        return
    for reason in readiness.reasons:
        yield Fault(GRAVE, reason, "TmsNotReady")
    for warning in readiness.warnings:
        yield Fault(MILD, warning, _runbook_of(warning))


def _runbook_of(warning: str) -> str:
    """The runbook of a warning of `/readyz`."""
    if warning.startswith("Readers of committed messages wait"):
        return "TmsReadersHeldElsewhere"
    return "TmsClocksApart" if "clock" in warning else ""


def _of_instances(loads: Iterable[InstanceLoad], view: ClusterView | None) -> Iterator[Fault]:
    page = path_of("instances")
    for load in loads:
        name = load.instance or "The service"
        if not load.answers:
            yield Fault(GRAVE, f"The instance {name} does not answer.", "TmsDown", page)
        elif not load.ready and load.instance:
            yield Fault(GRAVE, f"The instance {name} cannot store.", "TmsNotReady", page)
        if load.transactions_oldest_ms > OPEN_MS:
            age = duration(load.transactions_oldest_ms)
            text = f"A transaction has been open for {age}."
            yield Fault(MILD, text, "TmsTransactionOpenForLong", path_of("transactions"))
        elif load.partitions_blocked and load.transactions_oldest_ms > BLOCKED_MS:
            text = (
                f"Readers of committed messages wait in {number(load.partitions_blocked)} "
                "partitions for an open transaction."
            )
            yield Fault(MILD, text, "TmsReadersBlocked", path_of("transactions"))
        if load.transactions_invalid > INVALID_MAX:
            text = f"{number(load.transactions_invalid)} transactions are on the invalid list."
            yield Fault(MILD, text, "TmsInvalidTransactions", path_of("transactions"))
    if view is not None and view.instances and not view.coordinator:
        text = "No instance coordinates transactions."
        yield Fault(GRAVE, text, "TmsNoCoordinator", page)


def _of_history(history: History | None) -> Iterator[Fault]:
    if history is None:
        return
    failed = _lately(history.series.get("errors_s", ()))
    requests = _lately(history.series.get("requests_s", ()))
    if failed > ERRORS_MAX * requests:
        text = f"{failed / requests:.1%} of the requests of the last five minutes failed (5xx)."
        yield Fault(GRAVE, text, "TmsErrors")
    used = _newest(history.series, DISK_USED)
    total = _newest(history.series, DISK)
    if used is not None and total and used > DISK_MAX * total:
        text = f"The disk is {used / total:.0%} full: {size(round(total - used))} are left."
        yield Fault(MILD, text, "TmsNotReady")


def _of_groups(groups: Iterable[GroupSummary]) -> Iterator[Fault]:
    behind = [one for one in groups if one.lag and (one.lag_ms or 0) > BEHIND_MS]
    late = sorted(behind, key=lambda one: -(one.lag_ms or 0))
    for one in late[:SHOWN_MAX]:
        runbook = "TmsGroupBehind" if one.members else "TmsGroupWithoutMembers"
        text = f"The group {one.group} of {one.topic} is {number(one.lag)} messages and "
        text += f"{duration(one.lag_ms)} behind" + ("." if one.members else ", and has no members.")
        yield Fault(MILD, text, runbook, _page("groups", one.topic, one.group))
    if len(late) > SHOWN_MAX:
        text = f"{number(len(late) - SHOWN_MAX)} more groups are behind."
        yield Fault(MILD, text, "TmsGroupBehind", path_of("groups"))


def _of_lags(lags: Iterable[tuple[GroupSummary, Values]]) -> Iterator[Fault]:
    for group, values in lags:
        known = [value for value in values if value is not None]
        if not known or (group.lag_ms or 0) > BEHIND_MS:  # which is said already
            continue
        first = known[0]
        last = known[-1]
        if last > GROWN_MIN and last > GROWS * first:
            text = f"The lag of the group {group.group} of {group.topic} grew from "
            text += f"{number(round(first))} to {number(round(last))} messages in the last hour."
            page = _page("groups", group.topic, group.group)
            yield Fault(MILD, text, "TmsGroupBehind", page)


def _of_queues(queues: Sequence[QueueSummary]) -> Iterator[Fault]:
    dead = sorted((one for one in queues if one.dead), key=lambda one: -one.dead)
    for one in dead[:SHOWN_MAX]:
        text = f"The queue {one.group} of {one.topic} has {number(one.dead)} dead letters."
        yield Fault(MILD, text, "TmsDeadLetters", _page("queues", one.topic, one.group))
    if len(dead) > SHOWN_MAX:
        text = f"{number(len(dead) - SHOWN_MAX)} more queues have dead letters."
        yield Fault(MILD, text, "TmsDeadLetters", path_of("queues"))
    unsettled = [one for one in queues if (one.oldest_ms or 0) > UNSETTLED_MS]
    for one in sorted(unsettled, key=lambda one: -(one.oldest_ms or 0))[:SHOWN_MAX]:
        text = f"The oldest message of the queue {one.group} of {one.topic} has not been settled "
        text += f"for {duration(one.oldest_ms)}."
        yield Fault(MILD, text, "TmsQueueNotDrained", _page("queues", one.topic, one.group))


def _page(kind: str, topic: str, group: str) -> str:
    name = TopicName.parse(topic)
    return path_of(kind, name.namespace, name.topic, group)


def _lately(values: Values) -> float:
    """The sum of the known ones of the last five minutes."""
    return sum(value for value in values[-ERRORS_STEPS:] if value is not None)


def _newest(series: Mapping[str, list[float | None]], name: str) -> float | None:
    values = series.get(name)
    return values[-1] if values else None
