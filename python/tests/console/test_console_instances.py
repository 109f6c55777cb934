"""The console in a browser, on a cluster of three instances: each of them shows and changes
everything, and a page says that its instance has gone."""

from collections.abc import Callable

from playwright.sync_api import expect

from tests.cluster_kit import Instances, instances
from tests.console_kit import Visitor

PARTITIONS = 6


def test_each_instance_shows_and_changes_everything(
    three: Instances, visiting: Callable[..., Visitor]
) -> None:
    with three.connect("a") as bus:
        bus.create_topic("spread", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            bus.publish("spread", b"x", partition=partition)
        assert len(set(three.owners("spread"))) > 1
        pages = []
        for id in "abc":
            page = visiting(three.url(id)).open("/console/topics/default/spread")
            expect(page.get_by_role("main")).to_contain_text(f"{PARTITIONS} messages")
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
            pages.append(page)
        bus.publish("spread", b"x", partition=0)
        for page in pages:
            expect(page.get_by_role("main")).to_contain_text(f"{PARTITIONS + 1} messages")
        page = visiting(three.url("b")).open("/console/topics/default/spread/delete")
        page.get_by_role("textbox").fill("spread")
        page.get_by_role("button", name="Delete the topic").click()
        expect(page.get_by_role("main")).to_contain_text("The topic spread was deleted.")
        for page in pages:
            expect(page.get_by_role("contentinfo")).to_contain_text("Not live any more")
        assert "spread" not in [str(one.name) for one in bus.list_topics()]


def test_a_page_outlives_its_instance(visiting: Callable[..., Visitor]) -> None:
    with instances("a", "b") as both, both.connect("a") as bus:
        bus.create_topic("outlived")
        bus.publish("outlived", b"x")
        address = "/console/topics/default/outlived"
        page = visiting(both.url("b")).open(address)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        both.stop("b")
        expect(page.get_by_role("contentinfo")).to_contain_text("Not live; trying again")
        expect(page.get_by_role("main")).to_contain_text("1 messages")
        other = visiting(both.url("a")).open(address)
        expect(other.get_by_role("main")).to_contain_text("1 messages")
