"""Pages of queues over HTTP: numbers, settings, what waits, dead letters with their causes."""

import http.client
import json
import shlex
from urllib.parse import urlencode, urlsplit

import pytest

import tms
from tests.access_kit import People
from tests.cli_kit import tms_command
from tests.cluster_kit import Instances
from tests.http_kit import Served
from tests.pages_kit import PageForm, PageReader, ReadPage
from tests.waiting import until
from tms.client.client import Bus
from tms.client.queue import Queue
from tms.model.topic import TopicName

GROUP = "workers"
HOSTILE = "<b>\u202e'\"&</b>\x1b[31m"


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


def make(bus: Bus, topic: str, *values: bytes, **settings: object) -> tuple[Queue, str]:
    """A queue over a topic with these messages, and its page."""
    bus.create_topic(topic, durability="written")
    queue = bus.queue(topic, group=GROUP, **settings)  # type: ignore[arg-type]
    for value in values:
        bus.publish(topic, value, key=b"key of " + value)
    return queue, f"/console/queues/default/{topic}/{GROUP}"


def died(queue: Queue, *causes: str) -> None:
    """Reject a message for each cause."""
    for cause in causes:
        queue.reject(queue.receive(1, wait_s=20), cause)
    until(lambda: not queue.describe().dying, "the rejected messages are dead letters")


def values(bus: Bus, topic: str) -> list[bytes | None]:
    return [one.value for one in bus.consumer(topic, stop_at_end=True)]


def dead(bus: Bus, topic: str) -> list[bytes | None]:
    """The values of the open dead letters."""
    return [one.message.value for one in bus.list_dead_letters(topic, group=GROUP)]


def chosen(page: ReadPage, *texts: str) -> dict[str, str]:
    """The letters of the rows that have these texts, as a form sends them."""
    rows = page.html.split("<tr>")
    (found,) = {
        row.split('name="letter" value="')[1].split('"')[0]
        for text in texts
        for row in rows
        if f">{text}<" in row and 'name="letter"' in row
    }
    return {"letter": found}


def marking(page: ReadPage) -> PageForm:
    """The form with a mark for each letter."""
    others = ("letters", "all")
    (found,) = [
        one
        for one in page.forms
        if one.action.endswith("/plan") and not any(name in one.fields for name in others)
    ]
    return found


def run_shown(page: ReadPage, served: Served, *more: str) -> None:
    """Execute the `tms` command that a page shows."""
    (command,) = [one for one in page.commands if one.startswith("tms ")]
    ended = tms_command(*shlex.split(command)[1:], *more, "--url", served.url)
    assert ended.returncode == 0, ended.stderr


def test_queues_and_their_numbers(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, "numbers", b"1", b"2", b"3", b"4")
        died(queue, "no")
        queue.receive(1)
    page = reader.get("/console/queues")
    assert page.links[GROUP] == address and page.links["1 dead: why?"] == f"{address}/dead"
    shown = reader.get(address)
    assert "2 waiting 1 with workers 1 dead letters" in shown.text
    assert "30 default" in shown.text  # its lease
    assert "numbers-workers-dead default: named after topic and group" in shown.text
    assert "written the topic's" in shown.text
    topic = reader.get("/console/topics/default/numbers")
    assert topic.links[GROUP] == address and topic.links["1 dead: why?"] == f"{address}/dead"
    assert reader.get("/console/queues/default/numbers/nobody").status == 404


def test_numbers_go_on_without_reloading(served: Served, reader: PageReader) -> None:
    address = urlsplit(served.url)
    with tms.connect(served.url) as bus:
        queue, page = make(bus, "goes-on", b"1")
        for path, part, before, after in (
            (page, "queue", "<b>1</b> waiting", "<b>2</b> waiting"),
            ("/console/queues?search=goes-on", "queues", '<td class="n">2</td>', '"n">3</td>'),
            (page.replace("queues", "groups"), "group", "<b>3</b> messages", "<b>4</b> messages"),
        ):
            bus.set_positions("goes-on", {0: "earliest"}, group=GROUP)
            connection = http.client.HTTPConnection(address.netloc, timeout=20)
            query = urlencode({"page": path, "parts": part})
            connection.request("GET", f"/console/live?{query}")
            answer = connection.getresponse()
            assert before in next_parts(answer)[part]
            bus.publish("goes-on", b"more")
            assert after in next_parts(answer)[part]
            connection.close()
        assert queue.describe().leased == 0


def next_parts(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The parts of the next event."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the events ended"
    parts: dict[str, str] = json.loads(line[6:])
    return parts


def test_a_fresh_user_mends_a_poisoned_message(served: Served, reader: PageReader) -> None:
    """From the list to the end by what is seen: links and buttons."""
    with tms.connect(served.url) as bus:
        queue, _ = make(bus, "poison", b'{"quantity": 1}', b'{"quantity": "two"}')
        queue.ack(queue.receive(1))
        died(queue, "ValueError: quantity is 'two', a number is needed")
        page = reader.get(reader.get("/console/queues").links["1 dead: why?"])
        assert "ValueError: quantity is 'two', a number is needed" in page.text
        assert '{"quantity": "two"}' in page.text
        form = reader.get(page.links["Mend…"])
        assert "Once the message is published, the dead letter is settled" in form.text
        sent = form.form("/poison")
        assert sent.fields["value"] == '{"quantity": "two"}'
        assert sent.fields["key"] == 'key of {"quantity": "two"}'
        assert "tms-dead" not in sent.fields["headers"]
        done = reader.send(sent, value='{"quantity": 2}', do="publish")
        assert "The mended message was published to poison, and its dead letter is settled." in (
            done.text
        )
        assert "No message of poison is dead." in done.text
        assert queue.describe().dead == 0 and dead(bus, "poison") == []
        [message] = queue.receive(1, wait_s=20)
        assert (message.value, message.headers) == (b'{"quantity": 2}', {})
        again = reader.send(sent, value='{"quantity": 2}', do="publish")
        assert again.status == 409 and "Nothing was published: someone else has" in again.text
        assert len(values(bus, "poison")) == 3


def test_letters_by_cause_and_one_by_one(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, "causes", b"a", b"b", b"c", b"d")
        died(queue, "no file", "no file", "bad number", HOSTILE)
        page = reader.get(f"{address}/dead")
        assert "no file 2" in page.text and "bad number 1" in page.text
        assert "<b>" not in page.html.replace("<b>4</b>", "") and "⟨U+202E⟩" in page.text
        only = reader.get(page.links["no file"])
        assert "Only those whose cause begins with “no file”." in only.text
        assert "bad number" not in only.text and only.html.count('name="letter"') == 2
        hostile = [link for text, link in page.links.items() if "U+202E" in text]
        assert reader.get(hostile[0]).html.count('name="letter"') == 1
        by_cause = next(one for one in page.forms if len(one.fields["letters"].split()) == 2)
        plan = reader.send(by_cause, do="redrive")
        assert "2 of 4 dead letters go from causes-workers-dead back to causes" in plan.text
        assert dead(bus, "causes") == [b"a", b"b", b"c", b"d"], "a plan changes nothing"
        done = reader.send(plan.form("/settle"))
        assert "2 dead letters were moved back." in done.text
        assert dead(bus, "causes") == [b"c", b"d"]
        assert values(bus, "causes")[4:] == [b"a", b"b"]
        again = reader.send(plan.form("/settle"))
        assert "0 of 2 dead letters were moved back" in again.text
        assert "settled by someone else" in again.text
        assert len(values(bus, "causes")) == 6


def test_marked_letters_are_discarded_once_the_name_is_typed(
    served: Served, reader: PageReader
) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, "marked", b"a", b"b", b"c")
        died(queue, "no", "no", "no")
        page = reader.get(f"{address}/dead")
        form = marking(page)
        plan = reader.send(form, **chosen(page, "b"), do="discard")
        assert "1 of 3 dead letters are settled for good" in plan.text
        assert reader.send(plan.form("/settle"), typed="no").status == 422
        assert len(dead(bus, "marked")) == 3
        reader.send(plan.form("/settle"), typed=GROUP)
        assert dead(bus, "marked") == [b"a", b"c"]
        assert reader.send(form, do="discard").status == 422, "none is marked"


@pytest.mark.parametrize("do", ["redrive", "discard"])
def test_all_letters_and_the_command_that_does_the_same(
    served: Served, reader: PageReader, do: str
) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, f"all-{do}", b"a", b"b", b"c", b"d")
        died(queue, "no", "no")
        everything = next(one for one in reader.get(f"{address}/dead").forms if "all" in one.fields)
        plan = reader.send(everything, do=do)
        assert "The oldest 2 of 2 dead letters" in plan.text
        died(queue, "no", "no")  # after the plan was shown
        reader.send(plan.form("/settle"), typed=GROUP)
        assert dead(bus, f"all-{do}") == [b"c", b"d"], "no more than the plan says"
        run_shown(plan, served, *(["--yes"] if do == "discard" else []))
        assert dead(bus, f"all-{do}") == []
        assert len(values(bus, f"all-{do}")) == (8 if do == "redrive" else 4)


@pytest.mark.parametrize("do", ["redrive", "discard"])
def test_the_command_of_marked_letters_does_the_same(
    served: Served, reader: PageReader, do: str
) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, f"one-{do}", b"a", b"b")
        died(queue, "no", "no")
        page = reader.get(f"{address}/dead")
        fields = {"form": page.forms[0].fields["form"], "do": do, **chosen(page, "b")}
        run_shown(
            reader.post(f"{address}/dead/plan", fields),
            served,
            *(["--yes"] if do == "discard" else []),
        )
        assert dead(bus, f"one-{do}") == [b"a"]


@pytest.mark.parametrize(
    "fields",
    [
        {"do": "nothing", "all": "yes"},
        {"do": "redrive"},
        {"do": "redrive", "letters": "0:x"},
        {"do": "redrive", "letters": " ".join(["0:" + "0" * 40] * 1_001)},
    ],
)
def test_a_form_that_no_page_made_settles_nothing(
    served: Served, reader: PageReader, fields: dict[str, str]
) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, "made-up", b"a")
        died(queue, "no")
        token = reader.get(f"{address}/dead").forms[0].fields["form"]
        for step in ("plan", "settle"):
            assert reader.post(f"{address}/dead/{step}", {"form": token, **fields}).status == 422
        limit = {"form": token, "do": "redrive", "limit": "-1"}
        assert reader.post(f"{address}/dead/settle", limit).status == 422
        assert dead(bus, "made-up") == [b"a"]
        bus.delete_topic("made-up")
        bus.delete_topic("made-up-workers-dead")


def test_what_waits_is_rejected_or_released(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        queue, address = make(bus, "waits", b"1", b"2", b"3", b"4", lease_s=590)
        leased, failed = queue.receive(1)[0], queue.receive(1)[0]
        queue.nack(failed, delay_s=590)
        page = reader.get(f"{address}/waiting")
        assert "with a worker, 9 min" in page.text and "waits after a failure, 9 min" in page.text
        assert page.html.count('name="token"') == 2, "new messages have no delivery"
        (form,) = [one for one in page.forms if one.action.endswith("/waiting/plan")]
        plan = reader.send(form, token=failed.token, do="reject", cause="it is broken")
        assert "become dead letters in waits-workers-dead" in plan.text
        assert queue.describe().delayed == 1
        run_shown(reader.send(form, token=leased.token, do="release", cause=""), served)
        assert queue.ack(leased).fenced == (leased.token,)
        done = reader.send(plan.form("/settle"))
        assert "1 messages were rejected" in done.text
        until(lambda: queue.describe().dead == 1)
        [letter] = bus.list_dead_letters("waits", group=GROUP)
        assert (letter.message.value, letter.cause) == (b"2", "it is broken")
        late = reader.send(plan.form("/settle"))
        assert "1 were delivered again or settled meanwhile" in late.text
        assert reader.send(form, do="reject").status == 422
        assert reader.send(form, do="reject", token="x").status == 422


def test_a_queue_is_made_changed_and_deleted(served: Served, reader: PageReader) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("settings")
        new = reader.get("/console/queues/new").form()
        wrong = reader.send(new, topic="settings", group=GROUP, lease_s="soon", do="make")
        assert wrong.status == 422 and "Lease, seconds: a number, got 'soon'" in wrong.text
        assert wrong.form().fields["lease_s"] == "soon", "nothing is lost of what was typed"
        nowhere = reader.send(new, topic="missing", group=GROUP, do="make")
        assert nowhere.status == 422 and "missing" in nowhere.text
        shown = reader.send(new, topic="settings", group=GROUP, lease_s="60", jitter="0", do="show")
        run_shown(shown, served)
        made = bus.admin.queues.describe(TopicName.parse("settings"), GROUP).settings
        assert (made.lease_s, made.jitter) == (60.0, 0.0)
        done = reader.send(shown.form(), do="make")
        assert "The queue workers of settings is there." in done.text
        address = f"/console/queues/default/settings/{GROUP}"
        form = reader.get(f"{address}/settings").form()
        other = PageReader(served.url)
        others = other.get(f"{address}/settings").form()
        assert "were changed" in reader.send(form, deliveries_max="3", do="change").text
        refused = other.send(others, deliveries_max="9", do="change")
        assert refused.status == 409 and "someone else has changed" in refused.text
        assert refused.form().fields["deliveries_max"] == "3"
        run_shown(
            other.send(refused.form(), deliveries_max="4", durability="synced", do="show"), served
        )
        info = bus.admin.queues.describe(TopicName.parse("settings"), GROUP)
        assert (info.settings.deliveries_max, info.settings.durability) == (4, "synced")
        reader.get(f"{address}/settings")
        assert reader.send(form, lease_s="x", do="change").status == 409
        page = reader.get(f"{address}/delete")
        assert reader.send(page.form(), typed="no").status == 422
        assert "was deleted" in reader.send(page.form(), typed=GROUP).text
        assert bus.describe_queues("settings") == []
        bus.queue("settings", group=GROUP)
        run_shown(page, served, "--yes")
        assert bus.describe_queues("settings") == []


def test_grants(guarded: People) -> None:
    with guarded.bus("maker", "all *") as bus:
        queue, address = make(bus, "guarded", b"a", b"b")
        died(queue, "no")
        make(bus, "unseen", b"a")
    grants = "observe topic:default:guarded", "observe topic:default:guarded-workers-dead"
    watcher = PageReader(guarded.url, tms_session=guarded.token("watcher", *grants))
    listed = watcher.get("/console/queues")
    assert listed.links[GROUP] == address and "unseen" not in listed.text
    page = watcher.get(address)
    assert "needs consume on queue:default:guarded/workers" in page.text
    assert "needs manage on queue:default:guarded/workers" in page.text
    letters = watcher.get(f"{address}/dead")
    assert letters.status == 200 and "watcher may not consume" in letters.text
    assert watcher.get(f"{address}/waiting").status == 403
    assert watcher.get("/console/queues/default/unseen/workers").status == 403
    token = watcher.get(f"{address}/delete").form().fields
    for action, fields in (
        ("delete", {"typed": GROUP}),
        ("dead/settle", {"do": "redrive", "limit": "1"}),
        ("settings", {"was": "{}"}),
    ):
        answer = watcher.post(f"{address}/{action}", {**token, **fields})
        assert answer.status in (403, 409), action
    reading = "consume topic:default:guarded", "consume topic:default:guarded-workers-dead"
    reader = PageReader(guarded.url, tms_session=guarded.token("reader", *reading))
    letters = reader.get(f"{address}/dead")
    assert "no 1" in letters.text and "Mend…" not in letters.links
    assert "needs manage on queue:default:guarded/workers" in letters.text
    with guarded.bus("maker") as bus:
        assert dead(bus, "guarded") == [b"a"]


def test_queues_of_other_instances(three: Instances) -> None:
    with three.connect("a") as bus:
        for number in range(6):  # their shards have several owners
            queue, _ = make(bus, f"q{number}", b"a", b"b", b"c")
            died(queue, "no", "no", "no")
        for number, id in enumerate("abcabc"):
            reader = PageReader(three.url(id))
            assert reader.get("/console/queues").text.count("3 dead: why?") >= 6 - number
            address = f"/console/queues/default/q{number}/{GROUP}"
            page = reader.get(f"{address}/dead")
            fields = {"form": page.forms[0].fields["form"], "do": "redrive", **chosen(page, "b")}
            done = reader.send(reader.post(f"{address}/dead/plan", fields).form("/settle"))
            assert "1 dead letters were moved back." in done.text
            form = reader.get(done.links["Mend…"])
            mended = reader.send(form.form(f"/q{number}"), value="mended", do="publish")
            assert "its dead letter is settled" in mended.text
            assert dead(bus, f"q{number}") == [b"a"]
            assert "waits" in reader.get(f"{address}/waiting").text
