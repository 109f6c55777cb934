"""The page Instances, the owners of a topic, moves and drains."""

from collections.abc import Iterator

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances, instances
from tests.http_kit import Served
from tests.pages_kit import PageReader, ReadPage
from tests.waiting import until
from tms.errors import Unavailable

TOPIC = "spread"
OWNERS = f"/console/instances/owners/default/{TOPIC}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Instances]:
    with instances("a", "b", "c") as all:
        all.coordinator()
        with all.connect("a") as bus:
            bus.create_topic(TOPIC, partitions=6)
            bus.publish_many(TOPIC, [b"x"] * 1_200, partition=2)
        yield all


@pytest.fixture
def reader(cluster: Instances) -> PageReader:
    return PageReader(cluster.url("b"))


def other_than(cluster: Instances, partition: int) -> tuple[str, str]:
    """The owner of a partition, and another instance."""
    owner = cluster.owners(TOPIC)[partition]
    return owner, next(one for one in "abc" if one != owner)


def posted(page: ReadPage) -> list[str]:
    """The addresses of the forms of a page that change something."""
    own = [one.action for one in page.forms if one.method == "POST"]
    return [one for one in own if not one.endswith("/sign-out")]


def planned(reader: PageReader, partition: int, to: str) -> ReadPage:
    return reader.get(f"{OWNERS}?partition={partition}&to={to}")


def test_each_instance_is_shown_with_its_work(cluster: Instances, reader: PageReader) -> None:
    page = reader.get("/console/instances")
    assert page.status == 200
    for id in "abc":
        assert cluster.url(id) in page.html
        assert page.links[f"Drain {id}…"] == f"/console/instances/{id}/drain"
    assert page.html.count('<span class="muted">coordinates</span>') == 1
    assert page.text.count("answers here") == 1
    assert "Event Details" in page.text, "the instances have told what happened"
    assert "does not answer" not in page.text


def test_an_instance_that_does_not_answer_is_named(
    cluster: Instances, reader: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> None:
        raise Unavailable("It is away.")

    for peer in cluster.cluster["b"].others():
        monkeypatch.setattr(peer, "load", silent)
    page = reader.get("/console/instances")
    assert page.status == 200 and page.text.count("does not answer") == 2


def test_the_form_leads_to_the_owners_of_a_topic(cluster: Instances, reader: PageReader) -> None:
    page = reader.get(f"/console/instances?namespace=default&topic={TOPIC}")
    assert reader.at == OWNERS
    assert f"Owners of {TOPIC}" in page.text
    assert "1 200" in page.text


def test_a_partition_is_moved_and_placed_again(cluster: Instances, reader: PageReader) -> None:
    owner, other = other_than(cluster, 2)
    page = planned(reader, 2, other)
    assert f"{owner} closes the partition and {other} opens it" in page.text
    assert "1 200 messages" in page.text
    assert f"tms cluster move {TOPIC} 2 {other}" in page.text
    assert f"-X PUT {cluster.url('b')}/v2/namespaces/default/topics/{TOPIC}/owners/2" in page.text
    assert cluster.owners(TOPIC)[2] == owner, "nothing is moved by looking"
    done = reader.send(page.form())
    assert f"Partition 2 of {TOPIC} goes to {other}." in done.text
    until(lambda: cluster.owners(TOPIC)[2] == other)
    assert "chosen" in reader.get(OWNERS).text
    with tms.connect(cluster.url("a")) as bus:
        assert bus.publish(TOPIC, b"y", partition=2)
    back = planned(reader, 2, "")
    assert f"tms cluster unpin {TOPIC} 2" in back.text
    assert "goes where placement puts it" in reader.send(back.form()).text
    until(lambda: cluster.owners(TOPIC)[2] == owner)


def test_of_two_moves_the_second_one_is_told_of_the_first(
    cluster: Instances, reader: PageReader
) -> None:
    owner, other = other_than(cluster, 1)
    third = next(one for one in "abc" if one not in (owner, other))
    mine = planned(reader, 1, other)
    reader_of_theirs = PageReader(cluster.url("b"))
    theirs = planned(reader_of_theirs, 1, third)
    assert reader.send(mine.form()).status == 200
    until(lambda: cluster.owners(TOPIC, "b")[1] == other)
    refused = reader_of_theirs.send(theirs.form())
    assert refused.status == 409
    assert "Nothing was changed" in refused.text and f"belongs to {other} now" in refused.text
    assert cluster.owners(TOPIC)[1] == other


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("partition=6&to=a", "from 0 to 5"),
        ("partition=x&to=a", "from 0 to 5"),
        ("partition=-1&to=a", "from 0 to 5"),
        ("partition=%C2%B2&to=a", "from 0 to 5"),
        ("partition=0&to=nobody", "no instance"),
        ("partition=0&to=%3Cb%3E", "no instance"),
    ],
)
def test_a_move_that_cannot_be_is_not_offered(reader: PageReader, query: str, text: str) -> None:
    page = reader.get(f"{OWNERS}?{query}")
    assert page.status == 422 and text in page.text
    assert "<b>'" not in page.html and "'<b>" not in page.html
    assert not posted(page)


def test_a_forged_move_to_nowhere_is_refused(cluster: Instances, reader: PageReader) -> None:
    owner, other = other_than(cluster, 0)
    form = planned(reader, 0, other).form()
    for fields in ({"to": "nobody"}, {"partition": "99"}, {"partition": ""}, {"owner": ""}):
        assert reader.send(form, **fields).status in (409, 422), fields
    assert cluster.owners(TOPIC)[0] == owner


def test_owners_of_what_does_not_exist(reader: PageReader) -> None:
    assert reader.get("/console/instances/owners/default/never").status == 404
    assert reader.get("/console/instances/nobody/drain").status == 404
    assert reader.get("/console/instances?topic=..%2F..").status == 422


def test_an_instance_is_drained_by_its_typed_name() -> None:
    with instances("a", "b") as both:
        with both.connect("a") as bus:
            bus.create_topic(TOPIC, partitions=4)
        reader = PageReader(both.url("a"))
        page = reader.get("/console/instances/b/drain")
        assert "open partitions" in page.text and "go to a" in page.text
        assert "tms cluster drain b --yes" in page.text
        wrong = reader.send(page.form(), typed="a")
        assert wrong.status == 422 and "Nothing was changed" in wrong.text
        assert not any(one.draining for one in both.cluster["a"].view.instances)
        done = reader.send(page.form(), typed="b")
        assert "b hands over all that it owns" in done.text
        until(lambda: set(both.owners(TOPIC)) == {"a"})
        again = reader.get("/console/instances/b/drain")
        assert "draining already" in again.text and not posted(again)
        last = reader.get("/console/instances/a/drain")
        assert "no other instance that is not draining" in last.text
        moving = reader.get(f"/console/instances/owners/default/{TOPIC}?partition=0&to=b")
        assert moving.status == 422 and "is draining" in moving.text


def test_a_service_that_is_alone_says_so(served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("alone")
    reader = PageReader(served.url)
    page = reader.get("/console/instances")
    assert page.status == 200
    assert "This service is alone" in page.text and "this service" in page.text
    assert "owns every partition" in reader.get("/console/instances/owners/default/alone").text
    drain = reader.get("/console/instances/x/drain")
    assert drain.status == 200 and "This service is alone" in drain.text and not posted(drain)


def test_a_moves_page_that_is_sent_when_the_service_is_alone(served: Served) -> None:
    reader = PageReader(served.url)
    with tms.connect(served.url) as bus:
        bus.create_topic("alone-too")
    other = reader.get("/console/topics/default/alone-too/delete").form()
    target = "/console/instances/owners/default/alone-too"
    fields = {"form": other.fields["form"], "partition": "0", "to": "x", "owner": ""}
    assert reader.post(target, fields).status == 409


def test_strangers_see_nothing_and_observers_change_nothing(guarded: People) -> None:
    assert PageReader(guarded.url).get("/console/instances").status == 401
    with guarded.bus("maker", "all *") as bus:
        bus.create_topic("watched")
    for principal, grants, shown in (
        ("nobody", (), False),
        ("watcher", ("observe service", "observe cluster", "observe topic:default:watched"), True),
    ):
        reader = PageReader(guarded.url, tms_session=guarded.token(principal, *grants))
        page = reader.get("/console/instances")
        assert page.status == 200, page.text
        assert ("ready" in page.text.replace("not ready", "")) is shown
        assert reader.get("/console/instances/owners/default/watched").status == (
            200 if shown else 403
        )
