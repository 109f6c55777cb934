"""Faults that the overview finds in the answers of operations, and their runbooks."""

import re

import pytest

from tests.house.source import ROOT
from tms.api.bodies import ReadinessBody
from tms.console import attention
from tms.console.attention import Fault, Findings, faults_in
from tms.console.pages.runbooks import runbooks
from tms.model.cluster import ClusterView, InstanceInfo
from tms.model.group import GroupSummary
from tms.model.history import History
from tms.model.lag import InstanceLoad
from tms.model.queue import QueueSummary

HOUR_MS = 3_600_000
READY = ReadinessBody(True, [])


def only(**found: object) -> Fault:
    [fault] = faults_in(Findings(**found))  # type: ignore[arg-type]
    return fault


def history(**series: list[float | None]) -> History:
    return History(0, 10_000, series)


def load(**values: object) -> InstanceLoad:
    return InstanceLoad("a", "http://a", **{"ready": True, **values})  # type: ignore[arg-type]


def group(lag: int | None, lag_ms: int | None, members: int = 1) -> GroupSummary:
    return GroupSummary("billing", "shop:orders", members, lag, lag_ms)


def queue(dead: int = 0, oldest_ms: int | None = 0) -> QueueSummary:
    return QueueSummary("packers", "shop:orders", 1, 0, dead, oldest_ms)


def test_nothing_known_and_nothing_wrong_are_no_faults() -> None:
    assert faults_in(Findings()) == []
    healthy = Findings(
        READY,
        [load(transactions_oldest_ms=HOUR_MS, partitions_blocked=0)],
        ClusterView(1, "a", "member", "a", (InstanceInfo("a", "http://a", "0.1.0", 1, False),)),
        history(errors_s=[0, None], requests_s=[5, None], disk_used_bytes=[50], disk_bytes=[100]),
        [group(0, 0), group(None, None), group(5_000, 1_000)],
        [queue()],
        [(group(5_000, 1_000), [3_000, None, 5_000])],
    )
    assert faults_in(healthy) == []


@pytest.mark.parametrize(
    ("found", "kind", "runbook", "says", "page"),
    [
        (
            {"readiness": ReadinessBody(False, ["The disk is full."])},
            "bad",
            "TmsNotReady",
            "full",
            "",
        ),
        ({"readiness": ReadinessBody(True, [], ["Odd."])}, "warn", "", "Odd.", ""),
        (
            {"readiness": ReadinessBody(True, [], ["The clock of b is 3 s ahead."])},
            *("warn", "TmsClocksApart", "clock of b", ""),
        ),
        ({"loads": [load(answers=False)]}, "bad", "TmsDown", "a does not", "/console/instances"),
        ({"loads": [load(ready=False)]}, "bad", "TmsNotReady", "a cannot", "/console/instances"),
        (
            {"loads": [load(transactions_oldest_ms=2 * HOUR_MS)]},
            *("warn", "TmsTransactionOpenForLong", "open for 2 h", "/console/transactions"),
        ),
        (
            {"loads": [load(transactions_oldest_ms=HOUR_MS // 2, partitions_blocked=3)]},
            *("warn", "TmsReadersBlocked", "3 partitions", "/console/transactions"),
        ),
        (
            {"loads": [load(transactions_invalid=10_001)]},
            *("warn", "TmsInvalidTransactions", "10\u202f001", "/console/transactions"),
        ),
        (
            {"history": history(errors_s=[2, None, 1], requests_s=[50, None, 50])},
            *("bad", "TmsErrors", "3.0%", ""),
        ),
        (
            {"history": history(disk_used_bytes=[95 << 30], disk_bytes=[100 << 30])},
            *("warn", "TmsNotReady", "95% full: 5 GiB are left", ""),
        ),
        (
            {"groups": [group(60, HOUR_MS)]},
            *("warn", "TmsGroupBehind", "60 messages and 1 h behind.", ""),
        ),
        (
            {"groups": [group(60, HOUR_MS, members=0)]},
            *("warn", "TmsGroupWithoutMembers", "has no members", ""),
        ),
        (
            {"lags": [(group(9_000, 1_000), [None, 2_000, None, 9_000])]},
            *("warn", "TmsGroupBehind", "grew from 2\u202f000 to 9\u202f000", ""),
        ),
        ({"queues": [queue(dead=3)]}, "warn", "TmsDeadLetters", "3 dead letters", ""),
        ({"queues": [queue(oldest_ms=2 * HOUR_MS)]}, "warn", "TmsQueueNotDrained", "for 2 h", ""),
    ],
)
def test_a_fault_is_said_with_its_runbook_and_its_page(
    found: dict[str, object], kind: str, runbook: str, says: str, page: str
) -> None:
    fault = only(**found)
    assert (fault.kind, fault.runbook) == (kind, runbook)
    assert says in fault.text
    if "groups" in found or "lags" in found:
        page = "/console/groups/shop/orders/billing"
    elif "queues" in found:
        page = "/console/queues/shop/orders/packers"
    assert fault.page == page


def test_no_coordinator_is_a_fault_of_a_cluster_only() -> None:
    a = InstanceInfo("a", "http://a", "0.1.0", 1, False)
    assert only(view=ClusterView(1, "a", "member", "", (a,))).runbook == "TmsNoCoordinator"
    assert faults_in(Findings(view=ClusterView(0, "", "alone", ""))) == []


def test_errors_long_ago_and_a_lag_that_shrinks_are_no_faults() -> None:
    long_ago = [9.0, *[0.0] * 30]
    assert faults_in(Findings(history=history(errors_s=long_ago, requests_s=[9.0] * 31))) == []
    shrinks = [(group(5_000, 1_000), [9_000.0, 5_000.0]), (group(900, 1_000), [1.0, 900.0])]
    assert faults_in(Findings(lags=shrinks)) == []


def test_many_are_summed_up_and_the_grave_ones_stand_first() -> None:
    groups = [GroupSummary(f"g{n}", "shop:orders", 1, 5, HOUR_MS + n) for n in range(20)]
    queues = [QueueSummary(f"q{n}", "shop:orders", 0, 0, 1 + n, 0) for n in range(20)]
    found = faults_in(
        Findings(readiness=ReadinessBody(False, ["No."]), groups=groups, queues=queues)
    )
    assert found[0] == Fault("bad", "No.", "TmsNotReady")
    texts = [one.text for one in found]
    assert len(texts) == 1 + 2 * (attention.SHOWN_MAX + 1)
    assert texts[1].startswith("The group g19 ")
    assert "15 more groups are behind." in texts
    assert "15 more queues have dead letters." in texts


def test_every_runbook_that_a_fault_names_is_there() -> None:
    source = (ROOT / "python/tms/console/attention.py").read_text()
    named = {*re.findall(r'"(Tms\w+)"', source)}
    assert len(named) >= 12
    assert named <= {one.name for one in runbooks()}


def test_thresholds_are_those_of_the_alerts() -> None:
    alerts = (ROOT / "docker/prometheus/alerts.yaml").read_text()
    for text in (
        f"tms_transactions_oldest_ms > {attention.OPEN_MS}",
        f"max by (group, topic) (tms_group_lag_seconds) > {attention.BEHIND_MS // 1_000}",
        f"> {attention.ERRORS_MAX}",
        f"tms_transactions_invalid > {attention.INVALID_MAX}",
        f"tms_queue_oldest_seconds > {attention.UNSETTLED_MS // 1_000}",
    ):
        assert text in alerts, text


def test_runbooks_have_the_text_of_the_page() -> None:
    page = (ROOT / "docs/runbooks.md").read_text()
    found = {one.name: one.html for one in runbooks()}
    assert [*found] == re.findall(r"^## (\w+)$", page, re.MULTILINE)
    behind = found["TmsGroupBehind"]
    assert behind.count("<li>") == 3
    assert "<code>tms group list</code>" in behind
    assert '<a href="#tmspublishslow">TmsPublishSlow</a>' in found["TmsDelayedLate"]
    assert "(<code>docs/cluster.md</code>)" in found["TmsNotReady"]
    assert found["TmsNotReady"].count("<tr>") == 6
    for html in found.values():
        assert "](" not in html and "`" not in html and "|" not in html
