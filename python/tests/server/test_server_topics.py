"""Topics, readiness, metrics and the OpenAPI document over HTTP."""

import itertools
import json
from unittest.mock import Mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

import tms
from sim.faulty import FaultyStore
from tests.http_kit import Client, Served, serving
from tests.waiting import until
from tms.api import routes
from tms.errors import DataCorrupt
from tms.store.memory import MemoryStore

_topics = itertools.count()
PREFIX = "/v2/namespaces/default/topics"


@pytest.fixture
def topic(served: Served) -> str:
    return served.create(f"t{next(_topics)}", partitions=2)


def publish(client: Client, topic: str, *values: str, **more: object) -> None:
    found = [{"value": value, **more} for value in values]
    answer = client.request("POST", f"{topic}/messages", json.dumps({"messages": found}).encode())
    assert answer.status == routes.OK, answer


# -- topics ------------------------------------------------------------------------------------


def test_a_topic_is_created_described_changed_and_deleted(client: Client) -> None:
    path = f"{PREFIX}/life"
    settings = {"partitions": 2, "retention": "36h", "durability": "written"}
    answer = client.request("PUT", path, json.dumps(settings).encode())
    assert answer.status == routes.CREATED
    made = answer.json
    assert (made["namespace"], made["topic"], made["generation"]) == ("default", "life", 1)
    assert made["settings"]["retention_ms"] == 36 * 3_600_000
    publish(client, path, "a", "b", partition=1)
    described = client.request("GET", path).json
    assert [p["end_offset"] for p in described["partition_infos"]] == [0, 2]
    changes = {"retention": "forever", "partitions": 3}
    changed = client.request("PATCH", path, json.dumps(changes).encode()).json
    assert changed["settings"]["retention_ms"] is None
    assert changed["settings"]["partitions"] == 3
    assert changed["settings"]["durability"] == "written"
    assert client.request("DELETE", path).status == routes.NO_CONTENT
    assert client.request("GET", path).problem == "topic-not-found"
    assert client.request("DELETE", path).problem == "topic-not-found"
    assert client.request("PUT", path, b"{}").json["generation"] == 2


def test_topics_are_listed_in_pages_by_namespace(client: Client) -> None:
    names = [f"n{number}" for number in range(7)]
    for name in names:
        path = f"/v2/namespaces/paged/topics/{name}"
        assert client.request("PUT", path, b"{}").status == routes.CREATED
    seen: list[str] = []
    after = ""
    while True:
        page = client.request("GET", f"/v2/namespaces/paged/topics?limit=3{after}").json
        seen += [topic["topic"] for topic in page["topics"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == names
    assert client.request("GET", "/v2/namespaces/empty/topics").json["topics"] == []
    assert client.request("GET", "/v2/namespaces/a-b/topics").problem == "invalid"


def test_truncating_hides_what_was_before(client: Client, topic: str) -> None:
    publish(client, topic, "a", "b", "c", partition=0)
    answer = client.request("POST", f"{topic}/truncate", b'{"before":"offset:2"}')
    assert [p["start_offset"] for p in answer.json["partition_infos"]] == [2, 0]
    client.request("POST", f"{topic}/truncate", b"{}")
    assert client.request("GET", f"{topic}/messages").json["messages"] == []


def test_truncating_takes_one_partition_too(client: Client, topic: str) -> None:
    for partition in (0, 1):
        publish(client, topic, "a", "b", partition=partition)
    body = b'{"before":"offset:1","partition":1}'
    answer = client.request("POST", f"{topic}/truncate", body)
    assert [(p["partition"], p["start_offset"]) for p in answer.json["partition_infos"]] == [(1, 1)]
    described = client.request("GET", topic).json["partition_infos"]
    assert [p["start_offset"] for p in described] == [0, 1]
    for wrong, problem in (
        (b'{"partition":2}', "partition-not-found"),
        (b'{"partition":-1}', "invalid"),
        (b'{"partition":"1"}', "invalid"),
        (b'{"partition":1.5}', "invalid"),
        (b'{"partitions":[1]}', "invalid"),
    ):
        assert client.request("POST", f"{topic}/truncate", wrong).problem == problem
    described = client.request("GET", topic).json["partition_infos"]
    assert [p["start_offset"] for p in described] == [0, 1]


def test_a_patch_that_changes_nothing_is_refused(client: Client, topic: str) -> None:
    assert client.request("PATCH", topic, b"{}").problem == "invalid"


def test_inspecting_shows_segments_and_blocks(client: Client, topic: str) -> None:
    publish(client, topic, "a", "b", partition=1)
    publish(client, topic, "c", partition=1)
    shown = client.request("GET", f"{topic}/inspect?partition=1&limit=1").json
    assert shown["partition"] == 1
    assert [(b["base_offset"], b["count"]) for b in shown["blocks"]] == [(2, 1)]
    assert len(shown["segments"]) == 1
    assert client.request("GET", f"{topic}/inspect?partition=2").problem == "partition-not-found"


# -- operating ---------------------------------------------------------------------------------


def test_the_root_says_what_this_is_and_where_to_go(client: Client) -> None:
    shown = client.request("GET", "/").json
    assert (shown["name"], shown["version"]) == ("TMS", tms.__version__)
    for link in shown["links"].values():
        assert client.request("GET", link).status == routes.OK


def test_it_is_not_ready_while_the_store_fails_and_ready_again_by_itself() -> None:
    store = FaultyStore(MemoryStore())
    with serving(store) as served, served.connect() as client:
        topic = served.create("a")
        publish(client, topic, "before")
        store.fill()
        body = b'{"messages":[{"value":"a"}]}'
        answer = client.request("POST", f"{topic}/messages", body)
        assert (answer.status, answer.problem) == (507, "storage-full")
        assert answer.headers["retry-after"]
        ready = client.request("GET", "/readyz")
        assert ready.status == routes.NOT_READY
        assert ready.json["ready"] is False
        assert ready.json["reasons"]
        assert client.request("GET", "/livez").status == routes.OK
        found = client.request("GET", f"{topic}/messages")
        assert [message["value"] for message in found.json["messages"]] == ["before"]
        store.release()
        until(lambda: client.request("GET", "/readyz").status == routes.OK)
        publish(client, topic, "after")


def test_an_error_nobody_expected_says_only_its_request_id(
    served: Served, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Mock(side_effect=RuntimeError("/python/secret/path"))
    monkeypatch.setattr(served.service.engine.topics.registry, "find", broken)
    answer = client.request("GET", topic)
    assert (answer.status, answer.problem) == (500, "internal")
    assert b"secret" not in answer.body
    assert client.request("GET", "/livez").status == routes.OK


def test_damaged_data_is_never_delivered(
    served: Served, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Mock(side_effect=DataCorrupt("A stored block is damaged."))
    monkeypatch.setattr(served.service.engine, "fetch_cached", damaged)
    answer = client.request("GET", f"{topic}/messages?start=0:earliest")
    assert (answer.status, answer.problem) == (500, "data-corrupt")


def test_metrics_are_sound_and_count(client: Client, topic: str) -> None:
    publish(client, topic, "a")
    client.request("GET", f"{topic}/messages")
    text = client.request("GET", "/metrics")
    assert text.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in prometheus(text.body.decode())
        for sample in family.samples
    }
    assert samples["tms_messages_total",] >= 1
    assert samples["tms_http_answers_total", "publish", "200"] >= 1
    assert samples["tms_http_publish_seconds_count",] >= 1
    assert samples["tms_ready",] == 1
    assert samples["tms_http_connections",] >= 1
    media = "application/openmetrics-text; version=1.0.0"
    found = client.request("GET", "/metrics", Accept=media)
    assert found.headers["content-type"].startswith("application/openmetrics-text")
    assert list(openmetrics(found.body.decode()))


def test_the_number_of_series_does_not_grow_with_topics(served: Served, client: Client) -> None:
    def series() -> int:
        lines = client.request("GET", "/metrics").body.splitlines()
        return sum(not line.startswith(b"#") for line in lines)

    client.request("GET", "/nowhere")
    series()
    before = series()
    for _ in range(20):
        publish(client, served.create(f"t{next(_topics)}"), "a")
    assert series() <= before + 1


def test_metrics_show_members_and_lag_of_groups(served: Served, client: Client) -> None:
    path = served.create("watched", partitions=2)
    client.request("POST", f"{path}/groups/g/members/m", b"{}")
    messages = [{"value": "x", "partition": 1} for _ in range(3)]
    client.request("POST", f"{path}/messages", json.dumps({"messages": messages}).encode())
    text = client.request("GET", "/metrics").body.decode()
    place = 'group="g",topic="watched"'
    assert f"tms_group_members{{{place}}} 1.0" in text
    lags = [f'tms_group_lag_messages{{group="g",partition="{p}",topic="watched"}}' for p in (0, 1)]
    assert f"{lags[0]} 0.0" in text and f"{lags[1]} 3.0" in text
    assert 'tms_group_lag_seconds{group="g",partition="1",topic="watched"} ' in text
    client.request("DELETE", path)
    assert "watched" not in client.request("GET", "/metrics").body.decode()
