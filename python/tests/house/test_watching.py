"""Alerts and dashboard name exported series; each alert has a page that says what to do, and fires
in its state."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.clocks import ManualClock
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S
from tms.block import encode
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.queue import QueueSettings
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import PositionChange, PositionKey
from tms.store.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((ROOT / "docker/grafana/tms.json").read_text())
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "docker/prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
NAMES = [alert["alert"] for alert in ALERTS]
TARGET = {"instance", "job"}  # Prometheus's own labels of its targets
OF_PROMETHEUS = {"up": TARGET}
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
TOPIC = TopicName("default", "jobs")
Samples = Mapping[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock: ManualClock) -> Iterator[Served]:
    """A healthy service with every kind of resource."""
    with serving(MemoryStore(), clock=clock) as served:
        engine = served.service.engine
        engine.create_topic(TOPIC, TopicSettings(1, durability=Durability.WRITTEN))
        engine.queues.declare(TOPIC, "workers", QueueSettings())
        engine.append(TOPIC, [NewBlock(0, encode([b"x"] * 3))])
        key = PositionKey("readers", TOPIC, 0)
        engine.groups.move([PositionChange(key, Position.offset(1))])
        yield served


def scrape(served: Served) -> Samples:
    with served.connect() as client:
        client.request("GET", "/readyz")
        text = client.request("GET", "/metrics").body.decode()
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


@pytest.fixture(scope="module")
def exported(served: Served) -> dict[str, set[str]]:
    """Every series' name, with its labels; also of families that have no sample yet."""
    names = {name: {*some[0][0]} | TARGET for name, some in scrape(served).items()}
    with served.connect() as client:
        text = client.request("GET", "/metrics").body.decode()
    labels = {"tms_http_overloaded_total": {"kind"} | TARGET}
    for line in re.findall(r"^# TYPE (\S+) (?:counter|gauge)$", text, re.MULTILINE):
        names.setdefault(line, labels.get(line, set(TARGET)))
    return names | OF_PROMETHEUS


def expressions() -> list[tuple[str, str]]:
    """The place of an expression, and the expression."""
    found = [(f"alert {alert['alert']}", alert["expr"]) for alert in ALERTS]
    for panel in DASHBOARD["panels"]:
        found += [(f"panel {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def parsed(expression: str) -> Any:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return promql.parse(expression)


def nodes(expression: Any) -> list[Any]:
    found: list[Any] = []
    promql.walk(expression, pre_visit=lambda node: found.append(node))
    return found


def selectors(expression: str) -> list[Any]:
    """The series that an expression names."""
    found = nodes(parsed(expression))
    ranges = [one.vector_selector for one in found if isinstance(one, promql.MatrixSelector)]
    return ranges + [one for one in found if isinstance(one, promql.VectorSelector)]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_an_expression_names_series_and_labels_that_there_are(
    where: str, expression: str, exported: dict[str, set[str]]
) -> None:
    labels: set[str] = set()
    assert selectors(expression)
    for selector in selectors(expression):
        assert selector.name in exported, f"{where}: nothing exports {selector.name}"
        named = {matcher.name for matcher in selector.matchers.matchers}
        assert named <= exported[selector.name], f"{where}: {selector.name} has no {named}"
        labels |= exported[selector.name]
    kept = {
        name
        for clause in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for name in clause.replace(" ", "").split(",")
    }
    assert kept <= labels, f"{where}: {kept - labels}"


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_an_alert_says_what_to_do(alert: dict[str, Any], exported: dict[str, set[str]]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"Tms[A-Z][A-Za-z]+", alert["alert"])
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor == alert["alert"].lower() and alert["alert"] in headings
    assert promql.parse_duration(alert.get("for", "1m"))
    shown = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    by = re.findall(r"\bby \(([^)]*)\)", alert["expr"])
    if by:
        kept = {name for clause in by for name in clause.replace(" ", "").split(",")}
    else:
        kept = set.intersection(*(exported[one.name] for one in selectors(alert["expr"])))
    assert shown <= kept, f"{shown - kept} are not among its labels"


def test_every_runbook_is_of_an_alert_and_there_are_more_than_ten() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(NAMES) and len(set(NAMES)) == len(NAMES) >= 10


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


# -- firing ----------------------------------------------------------------------------------------


def fires(alert: str, samples: Samples) -> bool:
    """True if an alert that compares series with a number has one for which that holds."""
    tree = parsed(next(one["expr"] for one in ALERTS if one["alert"] == alert))
    limit = tree.rhs.val
    [selector] = [one for one in nodes(tree.lhs) if isinstance(one, promql.VectorSelector)]
    compare: Callable[[float], bool] = {
        ">": lambda value: value > limit,
        "==": lambda value: value == limit,
    }[str(tree.op).strip()]
    return any(compare(value) for _, value in samples.get(selector.name, []))


FIRED = (
    "TmsClockAhead",
    "TmsGroupBehind",
    "TmsNotReady",
    "TmsQueueNotDrained",
    "TmsReadersBlocked",
    "TmsReadersHeldElsewhere",
    "TmsTransactionOpenForLong",
)


def test_alerts_fire_in_a_bad_state_and_not_before(served: Served, clock: ManualClock) -> None:
    before = scrape(served)
    assert [name for name in FIRED if fires(name, before)] == []
    engine = served.service.engine
    id = engine.transactions.begin(long=True).transaction_id
    engine.transactions.submit(TOPIC, [NewBlock(0, encode([b"x"]))], id).result(PATIENCE_S)
    other = TopicName("default", "of-cdap")
    engine.create_topic(other, TopicSettings(1))
    engine.transactions.submit(other, [NewBlock(0, encode([b"x"]))], id - 1).result(PATIENCE_S)
    engine.fetch(other, [PartitionPosition(0, Position.earliest())], 1)
    clock.pass_ms(3_700_000)
    engine.append(TOPIC, [NewBlock(0, encode([b"x"]))])
    clock.jump_ms(-2_000)
    engine._store.healthy = lambda: "the disk is full"  # type: ignore[method-assign]
    after = scrape(served)
    assert [name for name in FIRED if not fires(name, after)] == []
