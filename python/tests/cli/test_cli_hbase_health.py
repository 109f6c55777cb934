"""The verdicts of `tms hbase status`; and the directories that it lets region servers read."""

from dataclasses import replace

import pytest

from tests.cli.test_cli_hbase import NEW, OLD, state
from tms.errors import ConfigError
from tms.runtime.clock import SystemClock
from tms.store.hbase.admin import Probe, Region
from tms.store.hbase.coprocessor import bounds
from tms.store.hbase.deployment import deploy, plan
from tms.store.hbase.deployment import jar_places as places
from tms.store.hbase.deployment.deploy import Deployment, RegionAnswer
from tms.store.hbase.deployment.health import (
    HealthFinding,
    HealthSeverity,
    Observed,
    findings,
    region_verdict,
    table_facts,
)
from tms.store.hbase.deployment.plan import FoundTable, Installed
from tms.store.hbase.rows import METADATA

GOOD = Probe("0.1.0", True, "tms:messages", metadata_age_ms=5, image_age_ms=7)
NOTE = Installed("0.1.0", 1, 1, NEW)


def region(number: int, table: str = "messages", server: str = "a:1") -> Region:
    return Region(table, f"r{number}", b"%d" % number, b"%d" % (number + 1), server)


def observed(*probes: Probe | str | None, found: plan.TablesState | None = None) -> Observed:
    """Regions of `messages` with these answers; those of `payloads` are healthy."""
    answers = [
        RegionAnswer(region(number), error=one)
        if isinstance(one, str)
        else RegionAnswer(region(number), probe=one)
        for number, one in enumerate(probes or [GOOD])
    ]
    others = {
        "payloads": [RegionAnswer(region(0, "payloads"), GOOD)],
        METADATA: [RegionAnswer(region(0, METADATA))],
    }
    found = found or state(NEW, NEW, NOTE)
    return Observed(found, {"messages": answers, **others}, {}, {}, "0.1.0")


def told(seen: Observed) -> list[tuple[str, str]]:
    return [(one.severity.value, one.what) for one in findings(seen)]


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert findings(observed(GOOD, GOOD)) == []


@pytest.mark.parametrize(
    ("probe", "word", "text"),
    [
        (None, "missing", "1 of 2 regions have no coprocessor"),
        (Probe("0.0.9", True, "t", 1, 1), "0.0.9 instead of 0.1.0", "0.0.9"),
        (Probe("0.1.0", False, "t", 1, 1), "off", "switched off in 1 of 2 regions"),
        ("it is closed", "unreachable", "1 of 2 regions do not answer: it is closed"),
        (Probe("0.1.0", True, "t", None, 1), "0.1.0", "1 of 2 regions have not read the metadata"),
        (Probe("0.1.0", True, "t", 400_000, 1), "0.1.0", "the metadata was read 400 s ago"),
    ],
)
def test_a_region_that_is_not_right_is_a_problem(
    probe: Probe | str | None, word: str, text: str
) -> None:
    seen = observed(GOOD, probe)
    assert region_verdict(seen.answers["messages"][1], "0.1.0") == word
    ((severity, what),) = told(seen)
    assert severity == "problem" and text in what
    assert all(one.next for one in findings(seen))


def test_a_service_that_writes_no_transactions_is_a_warning_once() -> None:
    silent = Probe("0.1.0", True, "t", 1, None)
    seen = replace(observed(silent), answers={"messages": [RegionAnswer(region(0), silent)]})
    assert [one.severity for one in findings(seen)] == [HealthSeverity.WARNING]
    both = {**seen.answers, "payloads": [RegionAnswer(region(0, "payloads"), silent)]}
    assert len(findings(replace(seen, answers=both))) == 1
    late = Probe("0.1.0", True, "t", 1, 3_600_000)
    assert "60 minutes" in told(observed(late))[0][1]


def test_tables_that_are_missing_resting_or_set_otherwise_are_problems() -> None:
    assert "no table payloads" in told(observed(found=state(NEW, NEW, NOTE, ("payloads",))))[0][1]
    resting = observed(found=state(NEW, NEW, NOTE, disabled=("payloads",)))
    assert ("problem", "it is disabled") in told(resting)
    good = state(NEW, NEW, NOTE)
    family = {**good.tables["messages"].table.family_attributes, "TTL": "86400"}
    table = replace(good.tables["messages"].table, family_attributes=family)
    changed = replace(good, tables={**good.tables, "messages": FoundTable(table)})
    assert "TTL = 86400" in told(observed(found=changed))[0][1]


def test_what_was_interrupted_or_never_noted_is_a_problem() -> None:
    assert "interrupted" in told(observed(found=state(NEW, OLD, NOTE)))[0][1]
    assert "no note of the installation" in told(observed(found=state(NEW, NEW, None)))[0][1]
    gone = replace(observed(), jars_gone={"messages": NEW.path})
    assert told(gone) == [
        ("problem", f"{NEW.path} is gone: region servers that start again stop themselves")
    ]


def test_a_store_without_the_coprocessor_is_warned_of_only() -> None:
    seen = observed(None, found=state(None, None, Installed("0.1.0", 1, 1)))
    seen = replace(seen, answers={**seen.answers, "payloads": []})
    assert [one.severity for one in findings(seen)] == [HealthSeverity.WARNING]


def test_an_older_coprocessor_is_right_until_the_operator_upgrades() -> None:
    older = Probe("0.0.9", True, "t", 1, 1)
    note = Installed("0.0.9", 1, 1, OLD)
    seen = observed(older, found=state(OLD, OLD, note))
    seen = replace(seen, answers={**seen.answers, "payloads": [RegionAnswer(region(0), older)]})
    ((severity, what),) = told(seen)
    assert severity == "warning" and "0.0.9 is installed" in what


def test_a_table_is_cleaned_as_far_as_its_last_region() -> None:
    notes = {"messages/r0": b'{"bound_ms":9,"table":"messages"}', "messages/r1": b"?"}
    seen = replace(observed(GOOD, GOOD), bounds=bounds(notes))
    facts = table_facts(seen, "messages")
    assert (facts["cleaned_before_ms"], facts["regions_cleaned"]) == (None, 1)
    seen = replace(seen, bounds=bounds({**notes, "messages/r1": b'{"bound_ms":5}'}))
    assert table_facts(seen, "messages")["cleaned_before_ms"] == 5
    assert table_facts(seen, "payloads")["cleaned_before_ms"] is None


def test_the_worst_is_told_first() -> None:
    silent = Probe("0.1.0", True, "t", 1, None)
    seen = observed(silent, None)
    assert [one.severity.value for one in findings(seen)] == ["problem", "warning"]
    assert isinstance(findings(seen)[0], HealthFinding)


# --- permissions of a jar ------------------------------------------------------------------------


class _Servers:
    def __init__(self, *names: str) -> None:
        self._names = list(names)

    def servers(self) -> list[str]:
        return self._names


def deployment(*servers: str) -> Deployment:
    admin: object = _Servers(*servers)
    return Deployment(admin, SystemClock(), 1.0, print)  # type: ignore[arg-type]


def test_a_directory_that_others_may_not_see_needs_a_word_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deploy, "_is_this_machine", lambda host: host == "here")
    local = places.parse("/srv/tms", None)
    deployment("here").require_visible(local, shared=False)
    deployment("here", "there").require_visible(local, shared=True)
    with pytest.raises(ConfigError, match="there") as raised:
        deployment("here", "there").require_visible(local, shared=False)
    assert "--shared" in raised.value.details["next"]
    in_hdfs = places.parse("hdfs://h/tms", "http://h:9870")
    deployment("here", "there").require_visible(in_hdfs, shared=False)


def test_this_machine_is_known_by_its_names() -> None:
    assert deploy._is_this_machine("localhost")
    assert deploy._is_this_machine("127.0.0.1")
    assert not deploy._is_this_machine("192.0.2.1")
    assert not deploy._is_this_machine("no-such-host.invalid")
