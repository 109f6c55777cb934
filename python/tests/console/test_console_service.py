"""Instances and the service in a browser: an instance is drained after a plan, a log level is set
for a time."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.cluster_kit import Instances
from tests.console_kit import NARROW_PX, Visitor, barriers, overflow_px
from tests.waiting import until

PARTITIONS = 6


def test_an_instance_is_drained_after_a_plan(
    three: Instances, visiting: Callable[..., Visitor]
) -> None:
    with three.connect("a") as bus:
        bus.create_topic("drained", partitions=PARTITIONS)
    visitor = visiting(three.url("b"))
    page = visitor.open("/console/instances")
    for id in "abc":
        expect(page.get_by_role("rowheader", name=id).first).to_be_visible()
    assert barriers(page) == []
    with page.expect_navigation():
        page.get_by_role("link", name="Drain c…").click()
    assert barriers(page) == []
    assert not three.member["c"].record.draining, "a plan changes nothing"
    page.get_by_role("textbox").fill("c")
    with page.expect_navigation():
        page.get_by_role("button", name="Drain the instance").click()
    expect(page.get_by_role("status").first).to_be_visible()
    until(lambda: "c" not in three.owners("drained", "a"), "others own its partitions")
    page.goto("/console/instances/owners/default/drained")
    expect(page.get_by_role("main")).not_to_contain_text("Not found")
    assert barriers(page) == []
    narrow = visitor.open("/console/instances", width=NARROW_PX)
    assert overflow_px(narrow) == 0


@pytest.mark.usefixtures("log_level")
def test_a_log_level_is_set_for_a_time(visitor: Visitor) -> None:
    page = visitor.open("/console/service")
    for level in ("debug", "default"):
        page.get_by_label("Logger").fill("tms.console")
        page.get_by_label("Level").select_option(level)
        with page.expect_navigation():
            page.get_by_role("button", name="Set a level…").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Set a log level")
        with page.expect_navigation():
            page.get_by_role("button", name="Set the level").click()
        row = page.get_by_role("row").filter(has_text="tms.console")
        if level == "debug":
            expect(row).to_contain_text("debug")
        else:
            expect(row.filter(has_text="debug")).to_have_count(0)
