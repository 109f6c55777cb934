"""Findings about the coprocessor, by the answers of its regions."""

import re
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

import tms
from tests.clocks import ManualClock
from tests.faults.service import within
from tms.store.hbase.admin import Admin, Probe, Region
from tms.store.hbase.coprocessor import AGE_MS_MAX, LOOK_S, VERSION, CoprocessorWatch, judge
from tms.store.hbase.pool import HBasePlace

ROOT = Path(__file__).resolve().parents[3]
FRESH = Probe(VERSION, True, "tms:messages", 1_000, 1_000)


def region(table: str = "messages") -> Region:
    return Region(table, "abc", b"", b"", "localhost:1")


def said(*probes: Probe | None) -> list[str]:
    return judge([(region(), probe) for probe in probes], "tms")


def test_the_version_is_that_of_the_package_and_of_the_jar() -> None:
    pom = (ROOT / "pom.xml").read_text()
    assert tms.__version__ == VERSION
    assert re.search(r"<artifactId>tms[^<]*</artifactId>\s*<version>([^<]*)", pom)[1] == VERSION  # type: ignore[index]


def test_nothing_is_said_of_regions_that_are_as_they_should_be() -> None:
    assert said(FRESH, FRESH) == []


def test_missing_other_old_and_switched_off_coprocessors_are_named_and_counted() -> None:
    missing = said(FRESH, None, None)
    assert len(missing) == 1 and "missing in 2 of 3 regions of tms:messages" in missing[0]
    other = said(Probe("0.0.9", True, "tms:messages", 1, 1), FRESH)
    assert "version 0.0.9 instead of 0.1.0 in 1 of 2 regions of tms:messages" in other[0]
    assert "tms hbase upgrade" in other[0]
    off = said(Probe(VERSION, False, "tms:messages", 1, 1))
    assert "switched off in 1 of 1 regions" in off[0]


def test_records_that_are_old_or_were_never_read_are_told() -> None:
    for probe in (
        Probe(VERSION, True, "tms:messages", AGE_MS_MAX + 1, 1),
        Probe(VERSION, True, "tms:messages", 1, AGE_MS_MAX + 1),
        Probe(VERSION, True, "tms:messages", None, 1),
        Probe(VERSION, True, "tms:messages", 1, None),
    ):
        assert "old records in 1 of 1 regions" in said(probe)[0]
        assert judge([(region(), probe)], "tms", young=True) == []


def test_each_table_is_told_of_by_itself() -> None:
    found = judge([(region(), None), (region("payloads"), None)], "tms")
    assert [one.split(":")[1][:8] for one in found] == ["messages", "payloads"]


def test_a_coprocessor_that_was_well_is_looked_at_again_and_soon_while_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.store.hbase.coprocessor.LOOK_AGAIN_S", 0.01)
    admin, clock = Mock(spec=Admin, place=HBasePlace.parse("hbase://h:1/tms")), ManualClock()
    admin.regions.side_effect = lambda table: [region(table)]
    admin.probe.return_value = FRESH
    watch = CoprocessorWatch(admin, clock)
    watch.warnings()
    _join_looks()
    assert watch.warnings() == [] and admin.probe.call_count == 2
    admin.probe.return_value = None
    clock.pass_ms(int(LOOK_S - 1) * 1_000)
    assert watch.warnings() == [] and admin.probe.call_count == 2
    clock.pass_ms(1_000)
    within(30, lambda: len(watch.warnings()) == 2)
    admin.probe.return_value = FRESH
    within(30, lambda: watch.warnings() == [])
    _join_looks()


def _join_looks() -> None:
    for thread in threading.enumerate():
        if thread.name == "tms-hbase-watch":
            thread.join(30)
