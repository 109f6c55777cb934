"""`tms queue`: a shell script can create a queue and be a worker."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import tms
from tests.http_kit import serving
from tests.waiting import until
from tms.cli.main import run
from tms.model.topic import TopicName


class Ended(NamedTuple):
    """The end of a run of `tms`."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Tms = Callable[..., Ended]


@pytest.fixture
def bus() -> Iterator[tms.Bus]:
    with serving() as served, tms.connect(served.url) as bus:
        served.service.engine.queues.start()  # moves dead letters
        bus.create_topic("jobs", durability="written")
        bus.publish_many("jobs", [b"one", b"two", b"three"])
        yield bus


@pytest.fixture
def cli(
    bus: tms.Bus, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Tms:
    """Run `tms queue` against the service."""
    url = bus._transport.addresses.now.url  # type: ignore[union-attr]

    def cli(*arguments: str) -> Ended:
        capsysbinary.readouterr()
        code = run(["queue", *arguments, "--url", url, "--no-input"])
        made = capsysbinary.readouterr()
        return Ended(code, made.out.decode(), made.err.decode())

    assert cli("create", "jobs", "workers", "--lease", "5m", "--backoff-first", "0").code == 0
    return cli


def test_a_queue_is_made_with_settings_shown_and_listed(cli: Tms) -> None:
    made = cli(
        *("create", "jobs", "others", "--json", "--lease", "500ms", "--deliveries-max", "3"),
        *("--backoff-first", "2s", "--backoff-max", "1m", "--jitter", "0", "--ordered-by", "key"),
        *("--dead-letter", "morgue", "--outstanding-max", "10", "--durability", "written"),
        *("--start", "latest"),
    ).json
    assert made["settings"] == {
        "lease_s": 0.5,
        "deliveries_max": 3,
        "backoff_first_s": 2.0,
        "backoff_max_s": 60.0,
        "jitter": 0.0,
        "dead_letter": "morgue",
        "ordered_by": "key",
        "start": "latest",
        "outstanding_max": 10,
        "durability": "written",
    }
    assert (made["topic"], made["dead_letter"]) == ("jobs", "morgue")
    assert cli("show", "jobs", "others", "--json").json == made
    assert [one["group"] for one in cli("list", "jobs", "--json").json] == ["others", "workers"]
    text = cli("show", "jobs", "workers").out
    assert "backlog" in text and "jobs-workers-dead" in text and "FRONTIER" in text


def test_settings_are_changed(cli: Tms) -> None:
    assert cli("update", "jobs", "workers", "--lease", "7").code == 0
    assert cli("show", "jobs", "workers", "--json").json["settings"]["lease_s"] == 7
    assert cli("update", "jobs", "workers").code == 2
    assert cli("create", "jobs", "workers").code == 4


def test_messages_are_received_with_tokens_and_acknowledged(cli: Tms) -> None:
    made = cli("receive", "jobs", "workers", "--limit", "2", "--json")
    one, two = made.lines
    assert [one["value"], two["value"]] == ["one", "two"]
    assert (one["deliveries"], one["offset"], one["encoding"]) == (1, 0, "utf-8")
    acked = cli("ack", "jobs", "workers", one["token"], two["token"], "--json")
    assert (acked.code, acked.json) == (0, {"done": 2, "fenced": []})
    assert cli("receive", "jobs", "workers").out.endswith("\tthree\n")
    nothing = cli("receive", "jobs", "workers", "--wait", "50ms")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "0 messages\n")


def test_a_format_has_tokens_and_deliveries(cli: Tms) -> None:
    token, rest = cli("receive", "jobs", "workers", "-f", "%a %d %v\\n").out.split(" ", 1)
    assert rest == "1 one\n"
    assert cli("ack", "jobs", "workers", token).err == "1 acked\n"
    assert cli("receive", "jobs", "workers", "-f", "%q").code == 2


def test_tokens_come_from_standard_input_too(cli: Tms, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    tokens = cli("receive", "jobs", "workers", "-n", "3", "-f", "%a\\n").out
    monkeypatch.setattr(sys, "stdin", io.StringIO(tokens))
    assert cli("ack", "jobs", "workers", "-").err == "3 acked\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli("ack", "jobs", "workers", "-").code == 0


def test_what_is_given_back_comes_again_and_its_old_token_ends_with_4(cli: Tms) -> None:
    [first] = cli("receive", "jobs", "workers", "--json").lines
    assert cli("nack", "jobs", "workers", first["token"], "--delay", "0").code == 0
    [again] = cli("receive", "jobs", "workers", "--json").lines
    assert (again["value"], again["deliveries"]) == ("one", 2)
    assert cli("extend", "jobs", "workers", again["token"], "--lease", "1h").code == 0
    late = cli("ack", "jobs", "workers", first["token"], again["token"], "--json")
    assert (late.code, late.json) == (4, {"done": 1, "fenced": [first["token"]]})
    assert cli("ack", "jobs", "workers", "nonsense").code == 2


def test_the_dead_letters_of_another_queue_in_the_same_topic_are_not_shown(
    cli: Tms, bus: tms.Bus
) -> None:
    for topic in ("first", "second"):
        bus.create_topic(topic)
        queue = bus.queue(topic, group="g", dead_letter="morgue")
        bus.publish(topic, topic.encode())
        [message] = queue.receive(1)
        queue.reject(message)
        until(lambda: queue.describe().dead > 0)  # noqa: B023 - of all queues of the topic
    for topic in ("first", "second"):
        assert [letter["value"] for letter in cli("dead", topic, "g", "--json").lines] == [topic]


def test_a_dead_letter_with_null_headers_is_shown(cli: Tms, bus: tms.Bus) -> None:
    [one] = cli("receive", "jobs", "workers", "--json").lines
    cli("reject", "jobs", "workers", one["token"])
    until(lambda: bus.admin.queues.describe(TopicName.parse("jobs"), "workers").dead == 1)
    [letter] = bus.list_dead_letters("jobs", group="workers")
    named: dict[str, bytes | None] = dict(letter.message.headers)
    told = {"tms-dead-cause": None, "tms-dead-deliveries": None}
    bus.publish(letter.message.topic, b"another", headers=named | told)
    assert cli("dead", "jobs", "workers", "-f", "%v%c%d\n").out == (
        "oneit was rejected1\nanother\n"
    )


def test_dead_letters_are_shown_and_moved_back(cli: Tms, bus: tms.Bus) -> None:
    assert "No dead letters" in cli("dead", "jobs", "workers").err
    [one] = cli("receive", "jobs", "workers", "--json").lines
    rejected = cli("reject", "jobs", "workers", one["token"], "--cause", "no such file")
    assert (rejected.code, rejected.err) == (0, "1 rejected\n")
    until(lambda: bus.admin.queues.describe(TopicName.parse("jobs"), "workers").dead == 1)
    [letter] = cli("dead", "jobs", "workers", "--json").lines
    assert (letter["value"], letter["headers"]["tms-dead-cause"]) == ("one", "no such file")
    assert (letter["cause"], letter["deliveries"]) == ("no such file", "1")
    assert cli("dead", "jobs", "workers", "-f", "%c").out == "no such file"
    assert "tms-dead-cause=no such file" in cli("dead", "jobs", "workers", "-n", "1").out
    dry = cli("redrive", "jobs", "workers", "--dry-run")
    assert "the 1 oldest of 1 dead letters will be moved back to jobs" in dry.err
    assert cli("dead", "jobs", "workers").out != ""
    assert cli("redrive", "jobs", "workers", "--json").json["moved"] == 1
    assert cli("dead", "jobs", "workers").out == ""
    got = [cli("receive", "jobs", "workers", "-f", "%v").out for _ in range(3)]
    assert sorted(got) == ["one", "three", "two"]


def test_dead_letters_are_settled_one_by_one(cli: Tms, bus: tms.Bus) -> None:
    tokens = [one["token"] for one in cli("receive", "jobs", "workers", "-n", "3", "--json").lines]
    cli("reject", "jobs", "workers", *tokens)
    until(lambda: bus.admin.queues.describe(TopicName.parse("jobs"), "workers").dead == 3)
    letters = {
        one["value"]: one["letter"] for one in cli("dead", "jobs", "workers", "--json").lines
    }
    assert cli("redrive", "jobs", "workers", letters["two"], "--json").json["moved"] == 1
    assert cli("redrive", "jobs", "workers", letters["two"], "--json").json["moved"] == 0
    assert cli("discard", "jobs", "workers", letters["three"]).code == 2  # not confirmed
    dry = cli("discard", "jobs", "workers", letters["three"], "--dry-run")
    assert "1 dead letters of jobs-workers-dead will never be moved back" in dry.err
    done = cli("discard", "jobs", "workers", letters["three"], "--yes", "--json")
    assert done.json["discarded"] == 1
    assert [one["value"] for one in cli("dead", "jobs", "workers", "--json").lines] == ["one"]
    assert cli("discard", "jobs", "workers", "0:nothing", "--yes").code == 2


def test_messages_are_looked_at_without_leasing_them(cli: Tms) -> None:
    [one] = cli("receive", "jobs", "workers", "--json").lines
    seen = cli("peek", "jobs", "workers", "--json").lines
    assert [(each["value"], each["state"], each["deliveries"]) for each in seen] == [
        ("one", "leased", 1),
        ("two", "new", 0),
        ("three", "new", 0),
    ]
    assert cli("peek", "jobs", "workers", "-n", "1").out == "leased\t1\tone\n"
    assert cli("ack", "jobs", "workers", one["token"]).code == 0
    assert cli("peek", "jobs", "workers", "-f", "%v %a\\n").out == "two new\nthree new\n"


def test_a_queue_is_deleted_when_somebody_says_yes(cli: Tms) -> None:
    assert cli("delete", "jobs", "workers").code == 2
    assert "3 messages not settled" in cli("delete", "jobs", "workers", "--dry-run").err
    assert cli("delete", "jobs", "workers", "--yes", "--json").json["deleted"]
    gone = cli("show", "jobs", "workers", "--json")
    assert (gone.code, gone.json["error"]["code"]) == (3, "queue-not-found")
    assert "No queues on jobs" in cli("list", "jobs").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("receive", "a/b", "jobs"),
        ("receive", "jobs", "workers", "--limit", "0"),
        ("receive", "jobs", "workers", "--wait", "soon"),
        ("create", "jobs", "workers", "--start", "-10"),
        ("ack", "jobs", "workers"),
        ("create", "jobs", "workers", "--lease", "13h"),
    ],
)
def test_wrong_arguments_are_usage(cli: Tms, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments).code == 2
