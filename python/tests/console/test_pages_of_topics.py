"""Topics: lists, one topic, making and changing them, removing messages; and that the commands that
pages show do the same."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from urllib.parse import urlencode

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
from tms.errors import Overloaded
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.server.whole_lists import WholeLists
from tms.store.memory import MemoryStore

NEW = "/console/topics/new"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    with tms.connect(served.url) as bus:
        yield bus


def at(topic: str, *more: str) -> str:
    return "/".join(["/console/topics/default", topic, *more])


def run(page: ReadPage, url: str, nth: int = 0) -> None:
    """Do what a page shows for a shell: the command, or with `nth` 1 the request."""
    words = shlex.split(page.commands[nth])
    if nth:
        subprocess.run([words[0], "-fsS", *words[1:]], check=True, capture_output=True, timeout=60)
        return
    ended = tms_command(*words[1:], env={"TMS_URL": url})
    assert ended.returncode == 0, ended


def rows(page: ReadPage) -> list[str]:
    """The links to topics, in order."""
    return re.findall(r'<th scope="row"><a href="/console/topics/[^"]*">([^<]*)</a>', page.html)


# -- lists -----------------------------------------------------------------------------------------


def test_a_list_is_searched_and_sorted(reader: PageReader, bus: Bus) -> None:
    for topic, count in (("find-small", 1), ("find-Big", 30), ("find-empty", 0), ("other", 5)):
        bus.create_topic(topic)
        bus.publish_many(topic, [b"x"] * count)
    page = reader.get("/console/topics?search=FIND-")
    assert rows(page) == ["find-Big", "find-empty", "find-small"]
    page = reader.get(page.links["Messages"])
    assert rows(page) == ["find-Big", "find-small", "find-empty"]
    assert 'aria-sort="descending"' in page.html and "may be a minute old" in page.text
    first = reader.get("/console/topics?search=find-&order=messages&limit=2")
    second = reader.get(first.links["Next page"])
    assert rows(first) + rows(second) == ["find-Big", "find-small", "find-empty"]
    assert rows(reader.get(second.links["First page"])) == rows(first)
    assert "No topic of default that you may see" in reader.get("/console/topics?search=zzz").text
    assert reader.get("/console/topics?order=colour").status == 422


def test_pages_of_another_namespace(reader: PageReader, bus: Bus) -> None:
    for nth in range(3):
        bus.create_topic(f"far:t{nth}")
    page = reader.get(reader.get("/console/topics").links["far"])
    assert rows(page) == ["far:t0", "far:t1", "far:t2"]
    first = reader.get("/console/topics?namespace=far&limit=2")
    assert rows(reader.get(first.links["Next page"])) == ["far:t2"]


# -- a new topic -----------------------------------------------------------------------------------

CHOSEN = {
    "partitions": "3",
    "retention": "36h",
    "retention_bytes": "64M",
    "durability": "written",
    "cleanup": "compact,delete",
    "tombstone_retention": "2h",
    "message_bytes_max": "1M",
    "partitioner": "murmur2",
}


def test_a_topic_is_made_and_a_shell_makes_the_same(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    form = reader.get(f"{NEW}?namespace=default").form()
    done = reader.send(form, topic="made", do="create", **CHOSEN)
    assert done.status == 200 and "The topic made was created." in done.text
    made = bus.describe_topic("made").settings
    assert (made.partitions, made.retention_ms, made.retention_bytes) == (3, 129_600_000, 64 << 20)
    assert (made.durability, made.cleanup) == ("written", "compact,delete")
    for nth, topic in enumerate(("by-command", "by-request")):
        reader.get(NEW)
        shown = reader.send(form, topic=topic, do="show", **CHOSEN)
        assert topic not in [info.topic for info in bus.list_topics()], "only shown"
        run(shown, served.url, nth)
        assert bus.describe_topic(topic).settings == made


def test_a_topic_with_defaults_has_the_stores_retention(reader: PageReader, bus: Bus) -> None:
    reader.send(reader.get(NEW).form(), topic="plain", do="create")
    bus.create_topic("plain")  # the same settings: it would be refused otherwise
    assert bus.describe_topic("plain").settings.retention_is_default


def test_faults_stand_beside_their_fields(reader: PageReader, bus: Bus) -> None:
    form = reader.get(NEW).form()
    wrong = {
        "topic": "no/name",
        "partitions": "0",
        "retention": "soon",
        "retention_bytes": "12",
        "message_bytes_max": "9M",
        "tombstone_retention": "",
        "do": "create",
    }
    page = reader.send(form, **wrong)
    assert page.status == 422
    faults = dict(re.findall(r'id="fault-([a-z_]+)" role="alert">([^<]*)', page.html))
    assert faults.keys() == wrong.keys() - {"do"}, faults
    assert "got &#39;soon&#39;" in faults["retention"]
    assert page.form().fields["retention"] == "soon", "what was typed stays"
    assert not page.commands
    bus.create_topic("taken", partitions=2)
    page = reader.send(form, topic="taken", do="create")
    assert page.status == 409 and "exists with other settings" in page.text
    assert 'id="fault-topic"' in page.html
    page = reader.send(form, topic="x", namespace="system", do="create")
    assert page.status == 403 and "belongs to TMS" in page.text
    assert page.form().fields["namespace"] == "system"


def test_an_address_fills_the_form(reader: PageReader) -> None:
    page = reader.get(f"{NEW}?topic=given&partitions=5&cleanup=compact")
    assert page.commands[0] == "tms topic create given --partitions 5 --cleanup compact"
    fields = page.form().fields
    assert (fields["topic"], fields["partitions"], fields["cleanup"]) == ("given", "5", "compact")


# -- settings --------------------------------------------------------------------------------------


def test_settings_change_once_their_effects_are_shown(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    for topic in ("change", "change-too", "change-by-request"):
        bus.create_topic(topic, retention="2d")
    reader.get(at("change", "settings"))
    changed = {"partitions": "4", "retention": "3d", "durability": "written"}

    def shown(topic: str) -> ReadPage:
        form = reader.get(at(topic, "settings")).form()
        return reader.send(form, do="show", **changed)

    page = shown("change")
    assert "3 more partitions" in page.text and "a loss of power" in page.text
    assert bus.describe_topic("change").settings.partitions == 1, "only shown"
    done = reader.send(page.form("/settings"), do="change")
    assert "change has now: partitions 4, retention 3d, durability written." in done.text
    settings = bus.describe_topic("change").settings
    assert (settings.partitions, settings.retention_ms) == (4, 259_200_000)
    run(shown("change-too"), served.url)
    run(shown("change-by-request"), served.url, 1)
    assert bus.describe_topic("change-too").settings == settings
    assert bus.describe_topic("change-by-request").settings == settings


def test_a_change_that_loses_messages_says_how_many(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("losing", retention="2d")
    bus.publish_many("losing", [b"x"] * 7)
    form = reader.get(at("losing", "settings")).form()
    page = reader.send(form, do="show", retention="1s", cleanup="compact,delete")
    assert "of 7 messages are older than 1s" in page.text
    assert "newer message of its key" in page.text
    refused = reader.send(page.form("/settings"), do="change")
    assert refused.status == 422 and "type losing to confirm" in refused.text
    assert bus.describe_topic("losing").settings.cleanup == "delete"
    reader.get(at("losing", "settings"))
    done = reader.send(page.form("/settings"), do="change", typed="losing")
    assert done.status == 200
    assert bus.describe_topic("losing").settings.cleanup == "compact,delete"


def test_a_default_retention_returns(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("own", retention="2d")
    page = reader.send(reader.get(at("own", "settings")).form(), do="show", retention="default")
    reader.send(page.form("/settings"), do="change", typed="own")
    assert bus.describe_topic("own").settings.retention_is_default


def test_settings_that_another_has_changed_meanwhile_stay(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("contested")
    form = reader.get(at("contested", "settings")).form()
    page = reader.send(form, do="show", partitions="2")
    bus.update_topic("contested", retention="1d")
    late = reader.send(page.form("/settings"), do="change")
    assert late.status == 409 and "have changed since this form was shown" in late.text
    assert bus.describe_topic("contested").settings.partitions == 1


def test_wrong_changes_are_said_beside_their_fields(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("wrong", partitions=3)
    form = reader.get(at("wrong", "settings")).form()
    page = reader.send(form, do="show", message_bytes_max="much")
    assert page.status == 422 and 'id="fault-message_bytes_max"' in page.html
    page = reader.send(reader.send(form, do="show", partitions="2").form("/settings"), do="change")
    assert page.status == 409 and "their number can only grow, not become 2" in page.text
    assert 'id="fault-partitions"' in page.html
    page = reader.send(form, do="show")
    assert "Nothing differs" in page.text and not page.commands


# -- one topic -------------------------------------------------------------------------------------


def test_a_topic_shows_what_holds_its_readers_back(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    bus.create_topic("held", partitions=2)
    assert 'id="held"' not in reader.get(at("held")).html
    engine, name = served.service.engine, TopicName("default", "held")
    pointer = served.service.clock.now_ms() * 1_000_000
    new = NewBlock(1, encode([b"x"] * 3))
    engine.transactions.submit(name, [new], pointer, "ann").result(5)
    page = reader.get(at("held"))
    assert "wait in 1 partition, before 3 messages" in page.text
    assert page.links[str(pointer)] == f"/console/transactions/{pointer}" and "ann" in page.text
    engine.transactions.invalidate(pointer)
    assert "wait in 1 partition" not in reader.get(at("held")).text


def test_producers_are_listed(reader: PageReader, bus: Bus, served: Served) -> None:
    bus.create_topic("produced", partitions=2)
    with bus.producer("produced") as producer:
        for _ in range(3):
            producer.send(b"x", partition=1).result()
    empty = reader.get(at("produced", "producers"))
    assert "Partition 0 remembers no producers" in empty.text
    page = reader.get(at("produced", "producers") + "?partition=1")
    [info] = bus.list_producers("produced", 1)
    assert f"{info.producer_id} counts blocks" in page.text and info.end_offset == 3
    run(page, served.url)
    run(page, served.url, 1)
    listed = tms_command("topic", "producers", "produced", "-p", 1, "--url", served.url)
    assert str(info.producer_id) in listed.stdout
    assert reader.get(at("produced", "producers") + "?partition=2").status == 422


# -- removing --------------------------------------------------------------------------------------


def sent(reader: PageReader, page: ReadPage, action: str, **fields: str) -> ReadPage:
    """The page to which the form leads that asks to confirm; it may have fields of one name."""
    found = re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)">', page.html)
    own = {"Origin": reader.origin, "Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode([*found, *fields.items()])
    answer = reader.ask("POST", action, body, own)
    return reader.get(answer.headers["location"]) if answer.status == 303 else answer


def starts(bus: Bus, topic: str) -> list[int]:
    return [part.start_offset for part in bus.describe_topic(topic).partition_infos]


def test_a_truncation_says_what_goes_and_removes_that(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    for topic in ("cut", "cut-too", "cut-by-request"):
        bus.create_topic(topic, partitions=2)
        for partition in (0, 1):
            bus.publish_many(topic, [b"x"] * 5, partition=partition)
    action = at("cut", "truncate")
    page = reader.get(action + "?before=offset:3&partition=1")
    assert "3 messages will be unreadable" in page.text
    wrong = sent(reader, page, action, typed="cu")
    assert wrong.status == 422 and "Nothing was changed" in wrong.text
    done = sent(reader, page, action, typed="cut")
    assert "Removed 3 messages of cut." in done.text and starts(bus, "cut") == [0, 3]
    again = sent(reader, page, action, typed="cut")
    assert "Removed 0 messages of cut." in again.text
    for nth, topic in enumerate(("cut-too", "cut-by-request")):
        run(reader.get(at(topic, "truncate") + "?before=offset:3&partition=1"), served.url, nth)
        assert starts(bus, topic) == [0, 3]


def test_a_truncation_leaves_what_is_published_after_it_was_shown(
    reader: PageReader, bus: Bus
) -> None:
    bus.create_topic("cut-latest", partitions=2)
    for partition in (0, 1):
        bus.publish_many("cut-latest", [b"x"] * 5, partition=partition)
    action = at("cut-latest", "truncate")
    page = reader.get(action + "?before=latest")
    assert "10 messages will be unreadable" in page.text and "meanwhile stay" in page.text
    bus.publish("cut-latest", b"later", partition=0)
    for _ in range(2):
        assert sent(reader, page, action, typed="cut-latest").status == 200
    assert starts(bus, "cut-latest") == [5, 5]
    consumer = bus.consumer("cut-latest", start="earliest", stop_at_end=True)
    assert [message.value for message in consumer] == [b"later"]
    for stop in ("0", "x:1", "0:-1", "0:" + "9" * 20):
        fields = {"typed": "cut-latest", "stop": stop}
        assert sent(reader, page, action, **fields).status == 422
    assert sent(reader, page, action, typed="cut-latest", stop="7:1").status == 404


@pytest.mark.parametrize("action", ["delete", "truncate?before=latest", "erase?key=a", "settings"])
def test_a_form_is_about_the_generation_that_it_has_shown(
    reader: PageReader, bus: Bus, action: str
) -> None:
    bus.create_topic("reborn", partitions=1)
    bus.publish("reborn", b"x", key=b"a", partition=0)
    page = reader.get(at("reborn", action))
    if action == "settings":
        page = reader.send(page.form(), do="show", partitions="3", retention="1s")
    bus.delete_topic("reborn")
    bus.create_topic("reborn", partitions=1)
    bus.publish("reborn", b"x", key=b"a", partition=0)
    target = at("reborn", action.partition("?")[0])
    fields = {"do": "change"} if action == "settings" else {}
    refused = sent(reader, page, target, typed="reborn", **fields)
    assert refused.status == 409 and "since this form was shown" in refused.text
    assert bus.describe_topic("reborn").partition_infos[0].end_offset == 1
    assert starts(bus, "reborn") == [0]
    bus.delete_topic("reborn")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("soon", "A position is latest"),
        ("2026-11-28 10:00:00", "names its zone"),
        ("offset:-1", "A position is latest"),
    ],
)
def test_a_wrong_position_of_a_truncation(
    reader: PageReader, bus: Bus, before: str, said: str
) -> None:
    bus.create_topic("cut-wrong")
    target = at("cut-wrong", "truncate") + f"?before={before.replace(' ', '+')}"
    page = reader.get(target)
    assert page.status == 422 and said in page.text, page.text
    assert not [form for form in page.forms if form.method == "POST"]


def test_a_time_is_a_position(reader: PageReader, bus: Bus) -> None:
    bus.create_topic("cut-time")
    bus.publish_many("cut-time", [b"x"] * 5)
    for time, count in (("2020-01-01 00:00:00.000Z", 0), ("2999-01-01T00:00:00%2B01:00", 5)):
        page = reader.get(at("cut-time", "truncate") + f"?before={time.replace(' ', '+')}")
        assert f"{count} messages will be unreadable" in page.text


def test_an_erasure_says_what_goes_and_removes_that(
    reader: PageReader, bus: Bus, served: Served
) -> None:
    for topic in ("rub", "rub-too", "rub-by-request"):
        bus.create_topic(topic)
        for key in (b"ann", b"bob", b"ann", b"\xff\x00"):
            bus.publish(topic, b"x", key=key)

    def left(topic: str) -> int:
        return sum(1 for _ in bus.consumer(topic, start="earliest", stop_at_end=True))

    page = reader.get(at("rub", "erase") + "?key=ann")
    assert "2 messages with this key" in page.text
    done = reader.send(page.form(), typed="rub")
    assert "Erased 2 messages of rub for good." in done.text and left("rub") == 2
    binary = at("rub", "erase") + "?key=/wA%3D&as=base64"
    assert "1 message with this key" in reader.get(binary).text
    assert "--key-hex ff00" in reader.get(binary).commands[0]
    assert reader.send(reader.get(binary).form(), typed="rub").status == 200 and left("rub") == 1
    for nth, topic in enumerate(("rub-too", "rub-by-request")):
        run(reader.get(at(topic, "erase") + "?key=ann"), served.url, nth)
        assert left(topic) == 2
    id = bus.publish("rub", b"last")
    by_id = reader.get(at("rub", "erase") + f"?id={id}&partition=0")
    assert reader.send(by_id.form(), typed="rub").status == 200 and left("rub") == 1


@pytest.mark.parametrize("query", ["key=a&id=b", "key=%21&as=base64", "id=zz&partition=0", "id=0"])
def test_a_wrong_erasure(reader: PageReader, bus: Bus, query: str) -> None:
    bus.create_topic("rub-wrong")
    page = reader.get(at("rub-wrong", "erase") + f"?{query}")
    assert page.status == 422 and 'class="notice bad"' in page.html and not page.commands


def test_a_shell_deletes_too(reader: PageReader, bus: Bus, served: Served) -> None:
    for nth, topic in enumerate(("gone", "gone-too")):
        bus.create_topic(topic)
        run(reader.get(at(topic, "delete")), served.url, nth)
        assert reader.get(at(topic)).status == 404


@pytest.mark.parametrize("page", ["", "settings", "truncate", "erase", "delete", "producers"])
def test_a_topic_that_was_deleted_meanwhile(reader: PageReader, bus: Bus, page: str) -> None:
    bus.create_topic("brief", partitions=2)
    target = at("brief", *filter(None, [page]))
    query = {"truncate": "?before=latest", "erase": "?key=a"}.get(page, "")
    shown = reader.get(target + query)
    bus.delete_topic("brief")
    forms = [form for form in shown.forms if form.method == "POST"]
    for form in forms:
        answer = reader.send(form, typed="brief", do="change", partitions="3")
        assert answer.status == 404 and "no topic brief" in answer.text
    assert reader.get(target).status == 404
    assert forms or page in ("", "producers")


# -- rights, instances, a full store ---------------------------------------------------------------


def test_an_observer_sees_and_cannot(guarded: People) -> None:
    with guarded.bus("owner", "all *") as bus:
        for topic in ("seen", "hidden"):
            bus.create_topic(topic)
        bus.publish("seen", b"x")
    reader = PageReader(guarded.url, tms_session=guarded.token("olga", "observe topic:seen"))
    page = reader.get("/console/topics")
    assert rows(page) == ["seen"] and "hidden" not in page.links
    assert "Create a topic…" not in page.links and "needs manage on namespace:default" in page.text
    page = reader.get(at("seen"))
    assert "1 messages" in page.text and "needs manage on topic:default:seen" in page.text
    assert not {"Delete…", "Truncate…", "Change settings…"} & page.links.keys()
    assert "needs consume" in page.text and "needs publish" in page.text
    assert reader.get(at("seen", "producers")).status == 200
    for action in ("delete", "truncate?before=latest", "erase?key=a", "settings"):
        form = reader.get(at("seen", action)).form()
        if action == "settings":
            shown = reader.send(form, do="show", partitions="2")
            assert 'value="change" disabled' in shown.html
            form = shown.form("/settings")
        refused = reader.send(form, typed="seen", do="change")
        assert refused.status == 403, refused.text
        assert "olga may not manage topic:default:seen" in refused.text
    refused = reader.send(reader.get(NEW).form(), topic="mine", do="create")
    assert refused.status == 403 and "may not manage topic:default:mine" in refused.text
    for target in (at("hidden"), at("hidden", "delete"), at("hidden", "settings")):
        assert reader.get(target).status == 403
    with guarded.bus("owner") as bus:
        assert {info.topic for info in bus.list_topics()} >= {"seen", "hidden"}


def test_a_page_asks_nothing_in_vain(guarded: People, caplog: pytest.LogCaptureFixture) -> None:
    """Pages are rendered again and again: each refusal would be a line of the audit log."""
    with guarded.bus("owner", "all *") as bus:
        bus.create_topic("quiet")
    reader = PageReader(guarded.url, tms_session=guarded.token("quinn", "observe topic:quiet"))
    caplog.set_level("INFO")
    for target in (
        "/console/topics",
        at("quiet"),
        at("quiet", "producers"),
        at("quiet", "erase?key=a"),
        at("quiet", "delete"),
        at("quiet", "settings"),
        "/console/delayed",
        "/console/transactions",
        "/console/transactions/prune",
    ):
        assert reader.get(target).status == 200, target
    said = [record.getMessage() for record in caplog.records]
    assert not [line for line in said if "access_denied" in line or "request_failed" in line]


def test_who_manages_some_topics_may_make_them(guarded: People) -> None:
    reader = PageReader(guarded.url, tms_session=guarded.token("mia", "manage topic:mia-*"))
    assert "Create a topic…" in reader.get("/console/topics").links
    form = reader.get(NEW).form()
    assert reader.send(form, topic="mia-one", do="create").status == 200
    refused = reader.send(form, topic="eve-one", do="create")
    assert refused.status == 403 and "may not manage topic:default:eve-one" in refused.text


def test_each_instance_shows_topics_and_their_owners(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.create_topic("spread", partitions=3)
        for partition in range(3):
            with bus.producer("spread") as producer:
                producer.send(b"x", partition=partition).result()
    owners = three.owners("spread")
    for id in ("a", "b", "c"):
        reader = PageReader(three.url(id))
        page = reader.get(at("spread"))
        shown = re.findall(r"</a></th><td>([abc])</td>", page.html)
        assert shown == list(owners), "the owner of each partition"
        assert rows(reader.get("/console/topics?search=SPREAD&order=messages")) == ["spread"]
        for partition in range(3):
            target = at("spread", "producers") + f"?partition={partition}"
            assert "counts blocks" in reader.get(target).text
        form = reader.get(at("spread", "settings")).form()
        assert reader.send(form, do="show", partitions="5").status == 200
    reader = PageReader(three.url("c"))
    page = reader.get(at("spread", "truncate") + "?before=latest")
    assert "3 messages will be unreadable" in page.text
    assert "3 messages" in sent(reader, page, at("spread", "truncate"), typed="spread").text
    with three.connect("b") as bus:
        parts = bus.describe_topic("spread").partition_infos
    assert [part.start_offset for part in parts[:3]] == [1, 1, 1]


def test_a_full_store_refuses_and_says_so() -> None:
    store = FaultyStore(MemoryStore())
    with serving(store) as served:
        served.create("full")
        reader = PageReader(served.url)
        new = reader.get(NEW).form()
        page = reader.send(reader.get(at("full", "settings")).form(), do="show", partitions="2")
        store.fill()
        refused = reader.send(page.form("/settings"), do="change")
        assert refused.status == 507 and "full" in refused.text.lower(), refused.text
        assert reader.send(new, topic="more", do="create").status == 507
        assert "0 messages" in reader.get(at("full")).text, "reading goes on"
        store.heal()
        reader.get(at("full", "settings"))
        done = reader.send(page.form("/settings"), do="change")
        assert done.status == 200 and "full has now: partitions 2." in done.text


def test_groups_and_queues_are_searched_and_sorted(reader: PageReader, bus: Bus) -> None:
    for topic, count in (("far-behind", 9), ("Near-behind", 2), ("mid-behind", 5)):
        bus.create_topic(topic)
        bus.publish_many(topic, [b"x"] * count)
        bus.set_positions(topic, {0: "offset:0"}, group="g")
        bus.queue(topic, group="q", start="earliest")

    def listed(page: ReadPage) -> list[str]:
        return [text for text in page.links if text.endswith("-behind")]

    by_number = ["far-behind", "mid-behind", "Near-behind"]
    for kind, order, label in (("groups", "lag", "Lag"), ("queues", "waiting", "Waiting")):
        page = reader.get(f"/console/{kind}?search=BEHIND")
        assert listed(page) == sorted(by_number)
        page = reader.get(page.links[label])
        assert listed(page) == by_number and 'aria-sort="descending"' in page.html
        assert f"order={order}" in reader.at
        assert (
            listed(reader.get(f"/console/{kind}?order={order}&search=behind/&limit=2"))
            == (by_number[:2])
        )
        assert "Nothing that you may see" in reader.get(f"/console/{kind}?search=zzz").text


def test_a_list_that_is_still_being_sorted_shows_names_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(MemoryStore()) as served, tms.connect(served.url) as bus:
        reader = PageReader(served.url)
        for nth in range(3):
            bus.create_topic(f"sort-{nth}")
            bus.publish_many(f"sort-{nth}", [b"x"] * nth)

        def still_made(*_: object) -> None:
            raise Overloaded("The list is being put into the order of its numbers. Try again.")

        with monkeypatch.context() as patched:
            patched.setattr(WholeLists, "get", still_made)
            page = reader.get("/console/topics?search=sort-&order=messages&limit=2")
            assert page.status == 200 and rows(page) == ["sort-0", "sort-1"]
            assert "is being sorted" in page.text and "Next page" not in page.links
        page = reader.get("/console/topics?search=sort-&order=messages")
        assert rows(page) == ["sort-2", "sort-1", "sort-0"]
        assert "is being sorted" not in page.text
