"""Transactions: those in progress, what they hold up, ending them, pruning the invalid list."""

import shlex
import subprocess
from collections.abc import Iterator

import pytest

import tms
from sim.faulty import FaultyStore
from tests.access_kit import People
from tests.cli_kit import tms_command
from tests.cluster_kit import Instances
from tests.http_kit import Served, serving
from tests.pages_kit import PageReader, ReadPage
from tms.block import encode
from tms.client.client import Bus
from tms.console.pages import transactions as pages
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.store.memory import MemoryStore

ALL = "/console/transactions"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as bus:
        yield bus
        for info in bus.admin.transactions.open():
            bus.admin.transactions.invalidate(info.transaction_id)


def begin(bus: Bus) -> str:
    return str(bus.admin.transactions.begin().transaction_id)


def outcome(bus: Bus, id: str) -> str:
    return bus.admin.transactions.describe(int(id)).outcome


def elsewhere(served: Served, topic: str) -> str:
    """A transaction begun elsewhere that has published three messages."""
    engine, name = served.service.engine, TopicName("default", topic)
    pointer = served.service.clock.now_ms() * 1_000_000
    new = NewBlock(0, encode([b"x"] * 3))
    engine.transactions.submit(name, [new], pointer, "ann").result(5)
    return str(pointer)


def run(page: ReadPage, url: str, nth: int) -> None:
    """Do what a page shows for a shell: the command, or the request."""
    words = shlex.split(page.commands[nth])
    if nth:
        subprocess.run([words[0], "-fsS", *words[1:]], check=True, capture_output=True, timeout=60)
        return
    ended = tms_command(*words[1:], env={"TMS_URL": url})
    assert ended.returncode == 0, ended


def test_those_in_progress_are_listed_oldest_first(
    reader: PageReader, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No transaction is in progress." in reader.get(ALL).text
    opened = [begin(bus) for _ in range(3)]
    page = reader.get(ALL)
    assert [text for text in page.links if text.isdigit()] == opened
    assert "3 in progress" in page.text and "oldest" in page.text
    monkeypatch.setattr(pages, "SHOWN", 2)
    page = reader.get(ALL)
    assert [text for text in page.links if text.isdigit()] == opened[:2]
    assert "3 in progress" in page.text and "1 younger ones are not shown" in page.text


def test_what_one_holds_up_is_shown(reader: PageReader, bus: Bus, served: Served) -> None:
    bus.create_topic("held-up", partitions=1)
    id = elsewhere(served, "held-up")
    page = reader.get(ALL)
    assert "ann" in page.text and "1 partition of held-up , since 20" in page.text
    assert page.links["held-up"] == "/console/topics/default/held-up"
    page = reader.get(page.links[id])
    assert page.links["held-up"] == "/console/topics/default/held-up"
    refused = reader.send(reader.get(f"{ALL}/{id}/abort").form(), typed=id)
    assert refused.status == 409 and f"tms tx invalidate {id}" in refused.text
    reader.get(f"{ALL}/{id}/invalidate")
    done = reader.send(reader.get(f"{ALL}/{id}/invalidate").form(), typed=id)
    assert f"The transaction {id} is invalid." in done.text
    assert "No reader waits for it." in done.text


@pytest.mark.parametrize(("how", "ended"), [("abort", "aborted"), ("invalidate", "invalid")])
def test_one_is_ended_by_its_typed_id_and_by_a_shell(
    reader: PageReader, bus: Bus, served: Served, how: str, ended: str
) -> None:
    one, *others = (begin(bus) for _ in range(3))
    page = reader.get(f"{ALL}/{one}/{how}")
    wrong = reader.send(page.form(), typed=one[:-1])
    assert wrong.status == 422 and outcome(bus, one) == "open"
    reader.get(f"{ALL}/{one}/{how}")
    done = reader.send(page.form(), typed=one)
    assert f"The transaction {one} is {ended}." in done.text and outcome(bus, one) == ended
    for nth, other in enumerate(others):
        run(reader.get(f"{ALL}/{other}/{how}"), served.url, nth)
        assert outcome(bus, other) == ended


def test_a_transaction_that_was_committed_meanwhile_stays(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("committed")
    id = begin(bus)
    page = reader.get(f"{ALL}/{id}/abort")
    bus.admin.transactions.abort(int(id))
    again = reader.send(page.form(), typed=id)
    assert f"The transaction {id} is aborted." in again.text, "twice is as good as once"
    assert "Abort…" not in reader.get(f"{ALL}/{id}").links


@pytest.mark.parametrize(("id", "status"), [("77", 404), ("x", 422), ("9" * 20, 422)])
def test_one_that_is_not_there(reader: PageReader, id: str, status: int) -> None:
    for more in ("", "/abort", "/invalidate"):
        assert reader.get(f"{ALL}/{id}{more}").status == status


def test_the_invalid_list_is_pruned_up_to_the_time_shown(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    def invalid() -> int:
        return bus.list_instances()[0].transactions_invalid

    for prune in ("form", "command", "request"):
        before = invalid()
        bus.admin.transactions.invalidate(int(begin(bus)))
        assert invalid() == before + 1
        kept = reader.get(f"{ALL}/prune?older_than=1h")
        assert f"On the list: {before + 1}." in kept.text
        assert "Took 0 transactions off" in reader.send(kept.form(), typed="prune").text
        page = reader.get(f"{ALL}/prune?older_than=1s")
        while bus.admin.transactions.open():
            bus.admin.transactions.abort(bus.admin.transactions.open()[0].transaction_id)
        served.service.clock.now_ms()
        if prune == "form":
            assert reader.send(page.form(), typed="all").status == 422
            page = reader.get(f"{ALL}/prune?older_than=1s")
            before_ms = str(served.service.clock.now_ms())
            done = reader.send(page.form(), typed="prune", before_ms=before_ms)
            assert f"Took {before + 1} transaction" in done.text
        else:
            until_older(served, 1_100)
            run(reader.get(f"{ALL}/prune?older_than=1s"), served.url, int(prune == "request"))
        assert invalid() == 0


def until_older(served: Served, ms: int) -> None:
    """Wait until everything so far is so old."""
    from tests.waiting import until

    clock = served.service.clock
    from_ms = clock.now_ms()
    until(lambda: clock.now_ms() - from_ms > ms, "time passes")


@pytest.mark.parametrize("age", ["forever", "soon", "-1s"])
def test_a_wrong_age(reader: PageReader, age: str) -> None:
    assert reader.get(f"{ALL}/prune?older_than={age}").status == 422


def test_who_may_not_operate_sees_why(guarded: People) -> None:
    with guarded.bus("owner", "all *") as bus:
        id = begin(bus)
        olga = PageReader(guarded.url, tms_session=guarded.token("olga", "observe service"))
        page = olga.get(ALL)
        assert page.status == 200 and "needs operate on transactions" in page.text
        assert id not in page.html
        assert olga.get(f"{ALL}/{id}").status == 404, "as if it were not there"
        token = guarded.token("tim", "publish topic:t*")
        own = begin(tms.connect(guarded.url, token=token))
        tim = PageReader(guarded.url, tms_session=token)
        page = tim.get(f"{ALL}/{own}")
        assert "Abort…" in page.links and "Invalidate…" not in page.links
        assert "needs operate on transactions" in page.text
        refused = tim.send(tim.get(f"{ALL}/{own}/invalidate").form(), typed=own)
        assert refused.status == 403 and "tim may not operate transactions" in refused.text
        assert outcome(bus, own) == "open"
        done = tim.send(tim.get(f"{ALL}/{own}/abort").form(), typed=own)
        assert f"The transaction {own} is aborted." in done.text
        refused = tim.send(tim.get(f"{ALL}/prune").form(), typed="prune")
        assert refused.status == 403
        bus.admin.transactions.abort(int(id))


def test_each_instance_shows_and_ends(three: Instances) -> None:
    for id in ("a", "b", "c"):
        with three.connect("a") as bus:
            transaction = begin(bus)
            reader = PageReader(three.url(id))
            assert transaction in reader.get(ALL).links
            page = reader.get(f"{ALL}/{transaction}/abort")
            assert "is aborted." in reader.send(page.form(), typed=transaction).text
            assert outcome(bus, transaction) == "aborted"


def test_a_full_store_says_what_is_not_done() -> None:
    store = FaultyStore(MemoryStore())
    with serving(store) as served, tms.connect(served.url) as bus:
        id = begin(bus)
        reader = PageReader(served.url)
        page = reader.get(f"{ALL}/{id}/invalidate")
        store.fill()
        refused = reader.send(page.form(), typed=id)
        assert refused.status in (503, 507), refused.text
        store.heal()
        reader.get(f"{ALL}/{id}/invalidate")
        assert "is invalid." in reader.send(page.form(), typed=id).text
