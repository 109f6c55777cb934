"""Pages of groups over HTTP: lag, a plan before a reset, two people who reset the same group."""

import shlex

import pytest

import tms
from tests.access_kit import People
from tests.cli_kit import tms_command
from tests.cluster_kit import Instances
from tests.http_kit import Served
from tests.pages_kit import PageReader, ReadPage
from tms.client.client import Bus

GROUP = "billing"
COUNT = 6  # messages of each topic, in two partitions by turns


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


def make(bus: Bus, topic: str, **positions: str) -> str:
    """A topic with messages, and a group at these positions (`p0`, `p1`); its page."""
    bus.create_topic(topic, partitions=2)
    for number in range(COUNT):
        bus.publish(topic, b"%d" % number, partition=number % 2)
    if positions:
        bus.set_positions(topic, {int(p[1:]): at for p, at in positions.items()}, group=GROUP)
    return f"/console/groups/default/{topic}/{GROUP}"


def at(bus: Bus, topic: str) -> dict[int, str]:
    return {p: str(position) for p, position in bus.positions(topic, group=GROUP).items()}


def run_shown(page: ReadPage, served: Served) -> None:
    """Execute the `tms` command that a page shows."""
    command = page.commands[0]
    assert command.startswith("tms ")
    ended = tms_command(*shlex.split(command)[1:], "--yes", "--url", served.url)
    assert ended.returncode == 0, ended.stderr


def test_groups_and_their_lag(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "lag", p0="offset:1", p1="offset:3")
    page = reader.get("/console/groups")
    assert page.links[GROUP] == address
    group = reader.get(address)
    assert "2 messages behind" in group.text
    assert "Nobody reads as this group now." in group.text
    assert group.links["lag"] == "/console/topics/default/lag"
    topic = reader.get("/console/topics/default/lag")
    assert topic.links[GROUP] == address
    assert "Lag by partition Partition billing 0 2" in topic.text, "not of those that are read"
    assert reader.get("/console/groups/default/lag/nobody").status == 404
    with tms.connect(served.url) as bus:
        bus.delete_topic("lag")
    assert reader.get(address).status == 404


def test_a_list_is_searched_and_sorted(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        make(bus, "sorted")
        for number, behind in enumerate((1, 3, 2)):
            bus.set_positions(
                "sorted", {0: f"offset:{3 - behind}", 1: "latest"}, group=f"s{number}"
            )
    found = reader.get("/console/groups?search=sorted/s")
    assert [text for text in found.links if text[:1] == "s" and text[1:].isdigit()] == [
        "s0",
        "s1",
        "s2",
    ]
    first = reader.get("/console/groups?search=sorted/s&order=lag&limit=1")
    assert "s1" in first.links and "s2" not in first.links
    second = reader.get(first.links["Next page"])
    assert "s2" in second.links and "s1" not in second.links
    assert "Nothing that you may see in default has nothing like it" in (
        reader.get("/console/groups?search=nothing+like+it").text
    )
    assert reader.get("/console/groups?order=nothing").status == 422


def test_members_and_their_partitions(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "members")
        group = tms.Group(GROUP, delivery="at-least-once")
        with bus.consumer("members", group=group) as consumer:
            next(iter(consumer))
            (member,) = bus.describe_group("members", group=GROUP).members
            page = reader.get(address)
            assert "1 members" in page.text and member.member in page.text
            plan = reader.get(f"{address}/reset?to=earliest")
            assert "The group has 1 members." in plan.text
            refused = reader.send(plan.form(), typed=GROUP)
            assert refused.status == 409 and "has members by now" in refused.text
            done = reader.send(plan.form(), typed=GROUP, force="yes")
            assert "goes on at the new positions in 2 partitions" in done.text
            assert "--force" in plan.commands[0]
            assert at(bus, "members") == {0: "earliest", 1: "earliest"}


@pytest.mark.parametrize(
    ("query", "again", "skipped"),
    [
        ("to=earliest", 4, 0),
        ("to=latest", 0, 2),
        ("to=offset&value=1", 2, 0),
        ("to=shift&value=-1", 2, 0),
        ("to=shift&value=%2B1", 0, 2),
        ("to=shift&value=-1&partitions=1", 1, 0),
        ("to=time&value=2001-01-01", 4, 0),
        ("to=time&value=2100-01-01+10:00", 0, 2),
        ("to=time&value=1000000000000", 4, 0),
    ],
)
def test_a_reset_does_what_its_plan_and_its_command_say(
    served: Served, reader: PageReader, query: str, again: int, skipped: int
) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "plan", p0="offset:2", p1="offset:2")
        before = at(bus, "plan")
        plan = reader.get(f"{address}/reset?{query}")
        assert f"{again} messages read again {skipped} messages skipped" in plan.text
        assert at(bus, "plan") == before, "a plan changes nothing"
        assert reader.send(plan.form(), typed="else").status == 422
        assert at(bus, "plan") == before
        done = reader.send(plan.form(), typed=GROUP)
        assert done.status == 200 and "goes on at the new positions" in done.text
        lag = sum(one.lag or 0 for one in bus.describe_group("plan", group=GROUP).partitions)
        assert lag == 2 + again - skipped
        by_form = at(bus, "plan")
        bus.set_positions("plan", before, group=GROUP)
        run_shown(plan, served)
        assert at(bus, "plan") == by_form
        bus.delete_topic("plan")


def test_a_reset_to_an_id(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "to-id", p0="latest", p1="latest")
        last = max(bus.consumer("to-id", stop_at_end=True), key=lambda message: message.id)
        plan = reader.get(f"{address}/reset?to=id&value={last.id}&partitions={last.partition}")
        assert "1 messages read again" in plan.text
        reader.send(plan.form(), typed=GROUP)
        assert at(bus, "to-id")[last.partition] == f"id:{last.id}"


def test_of_two_people_who_reset_a_group_one_is_told(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "two", p0="offset:1", p1="offset:1")
        other = PageReader(served.url)
        first = reader.get(f"{address}/reset?to=earliest")
        second = other.get(f"{address}/reset?to=offset&value=2&partitions=1")
        assert "new positions" in other.send(second.form(), typed=GROUP).text
        refused = reader.send(first.form(), typed=GROUP)
        assert refused.status == 409
        assert "Nothing was changed. Meanwhile:" in refused.text
        assert "Partition 1 was moved from offset:1 to offset:2 ." in refused.text
        assert at(bus, "two") == {0: "offset:1", 1: "offset:2"}
        again = reader.send(refused.form(), typed=GROUP)
        assert again.status == 200 and set(at(bus, "two").values()) == {"earliest"}


def test_a_form_that_is_sent_twice_resets_once(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "twice", p0="offset:1")
        plan = reader.get(f"{address}/reset?to=shift&value=1&partitions=0")
        assert "new positions" in reader.send(plan.form(), typed=GROUP).text
        reader.at = f"{address}/reset?to=shift&value=1&partitions=0"
        assert "is at these positions already" in reader.send(plan.form(), typed=GROUP).text
        assert at(bus, "twice") == {0: "offset:2"}


@pytest.mark.parametrize(
    "query",
    [
        "to=nowhere",
        "to=time&value=yesterday",
        "to=time&value=99999-01-01",
        "to=id&value=%00",
        "to=offset&value=-1",
        "to=offset&value=100",
        "to=shift&value=x",
        "to=shift&value=0",
        "to=shift&value=99999999999999999",
        "to=earliest&partitions=x",
        "to=earliest&partitions=7",
        "to=earliest&partitions=-1",
    ],
)
def test_a_fault_of_the_form_is_said_on_it(served: Served, reader: PageReader, query: str) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "faults", p0="offset:1")
        page = reader.get(f"{address}/reset?{query}")
        assert page.status == 200 and 'id="fault"' in page.html
        assert "What it would do" not in page.text
        bus.delete_topic("faults")


@pytest.mark.parametrize(
    "plan", ["", "{}", "[[0]]", '[[0,"",7]]', '[["a","","earliest"]]', "[" * 9_999]
)
def test_a_plan_that_no_page_made_changes_nothing(
    served: Served, reader: PageReader, plan: str
) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "made-up", p0="offset:1")
        form = reader.get(f"{address}/reset?to=earliest").form()
        assert reader.send(form, typed=GROUP, plan=plan).status in (400, 413, 422)
        assert at(bus, "made-up") == {0: "offset:1"}
        bus.delete_topic("made-up")


def test_positions_are_forgotten_by_the_typed_name(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "forget", p0="offset:2", p1="offset:1")
        page = reader.get(f"{address}/forget")
        assert "3 messages that it has read come once more" in page.text
        assert reader.send(page.form(), typed="").status == 422
        assert len(at(bus, "forget")) == 2
        done = reader.send(page.form(), typed=GROUP)
        assert "were forgotten" in done.text and not at(bus, "forget")
        bus.set_positions("forget", {0: "offset:2"}, group=GROUP)
        reader.get(f"{address}/forget")
        refused = reader.send(page.form(), typed=GROUP)
        assert refused.status == 409 and "Nothing was forgotten." in refused.text
        assert "2 messages that it has read come once more" in refused.text
        assert at(bus, "forget") == {0: "offset:2"}
        run_shown(page, served)
        assert not at(bus, "forget")
    assert reader.get(address).status == 404


def test_a_group_that_is_new_begins_where_it_is_told(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        address = make(bus, "begins")
        plan = reader.get(f"{address}/reset?to=latest")
        assert "neither positions nor members yet" in plan.text
        reader.send(plan.form(), typed=GROUP)
        assert (
            sum(one.lag or 0 for one in bus.describe_group("begins", group=GROUP).partitions) == 0
        )


def test_names_and_metadata_are_no_markup(served: Served, reader: PageReader) -> None:
    group = "<b>&'\" \u0627..?#"
    with tms.connect(served.url) as bus:
        make(bus, "markup")
        noted = tms.CommittedPosition(tms.Position.offset(1), metadata="<i>\x1b\u202e</i>")
        bus.set_positions("markup", {0: noted}, group=group)
    listed = reader.get("/console/groups")
    address = listed.links[group]
    for page in (listed, reader.get(address), reader.get(f"{address}/reset?to=earliest")):
        assert page.status == 200 and "<b>&" not in page.html and "<i>" not in page.html
    assert "⟨U+202E⟩" in reader.get(address).text


def test_grants(guarded: People) -> None:
    with guarded.bus("maker", "all *") as bus:
        address = make(bus, "guarded", p0="offset:1")
        make(bus, "unseen", p0="offset:1")
    watcher = PageReader(
        guarded.url, tms_session=guarded.token("watcher", "observe topic:default:guarded")
    )
    listed = watcher.get("/console/groups")
    assert listed.links[GROUP] == address and "unseen" not in listed.text
    page = watcher.get(address)
    assert "needs consume on group:default:guarded/billing" in page.text
    assert "needs manage on group:default:guarded/billing" in page.text
    plan = watcher.get(f"{address}/reset?to=earliest")
    assert "1 messages read again" in plan.text and "needs consume" in plan.text
    assert watcher.get("/console/groups/default/unseen/billing").status == 403
    reader = PageReader(guarded.url, tms_session=guarded.token("reader", "all *"))
    form = reader.get(f"{address}/reset?to=earliest").form()
    stolen = watcher.get(f"{address}/forget").form()  # its own token, but no grant
    assert watcher.post(f"{address}/forget", {**stolen.fields, "typed": GROUP}).status == 403
    assert "new positions" in reader.send(form, typed=GROUP).text


def test_groups_of_other_instances(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.create_topic("spread", partitions=6)
        for number in range(12):
            bus.publish("spread", b"%d" % number, partition=number % 6)
        for number in range(8):  # their shards have several owners
            bus.set_positions("spread", dict.fromkeys(range(6), "offset:1"), group=f"g{number}")
    for id in ("a", "b", "c"):
        reader = PageReader(three.url(id))
        listed = reader.get("/console/groups")
        assert {f"g{number}" for number in range(8)} <= set(listed.links)
        for number in range(8):
            address = f"/console/groups/default/spread/g{number}"
            assert "messages behind" in reader.get(address).text
            to = f"{address}/reset?to=shift&value={'-1' if id == 'a' else '1'}"
            plan = reader.get(to)
            assert (
                "goes on at the new positions" in reader.send(plan.form(), typed=f"g{number}").text
            )
