"""Live parts of pages: shared by those who look at the same, ended with the session."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

import tms
from tests.access_kit import People
from tests.http_kit import Served
from tests.waiting import until
from tms.console import live
from tms.model.topic import TopicName, TopicSettings

TARGET = "/console/live?page=/console/topics/default/{}&parts=topic"
VIEWERS = 100


@contextlib.contextmanager
def viewer(served: Served, topic: str, session: str = "") -> Iterator[socket.socket]:
    """A browser that looks at a topic's page."""
    with socket.create_connection(served.address, timeout=20) as connection:
        lines = [f"GET {TARGET.format(topic)} HTTP/1.1", "Host: localhost"]
        lines += [f"Cookie: tms_session={session}"] if session else []
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def heard(connection: socket.socket, wanted: bytes) -> bytes:
    """The answer until something wanted is in it, or it closes the connection."""
    received = b""
    while wanted not in received:
        piece = connection.recv(1 << 16)
        if not piece:
            break
        received += piece
    assert wanted in received, received[-600:]
    return received


def test_those_who_look_at_the_same_share_the_work(served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("shared")
    answers = served.service.metrics.answers
    with contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(viewer(served, "shared")) for _ in range(VIEWERS)]
        for one in viewers:
            heard(one, b"event: parts")
        before, started_s = answers["topics.describe_topic", 200], time.monotonic()
        with tms.connect(served.url) as bus:
            bus.publish("shared", b"one")
        for one in viewers:
            heard(one, b"<b>1</b> messages")
        looks = answers["topics.describe_topic", 200] - before
        assert looks <= 2 + (time.monotonic() - started_s) / live.LIVE_S


def test_nobody_looks_when_all_have_left(served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("left")
    with viewer(served, "left") as one:
        heard(one, b"event: parts")
    answers = served.service.metrics.answers
    time.sleep(live.LIVE_S)
    before = answers["topics.describe_topic", 200]
    time.sleep(2 * live.LIVE_S)
    assert answers["topics.describe_topic", 200] == before


@pytest.mark.parametrize("how", ["revoked", "not granted"])
def test_parts_end_with_the_right_to_see_them(guarded: People, how: str) -> None:
    guarded.served.service.engine.create_topic(TopicName.parse("seen"), TopicSettings())
    id = "revoked" if how == "revoked" else "degraded"
    session = guarded.token(id, "observe topic:default:seen")
    with viewer(guarded.served, "seen", session) as one:
        heard(one, b"event: parts")
        if how == "revoked":
            guarded.access.revoke_token(session.split("_")[1])
        else:
            guarded.access.remove_grant(id, "observe", "topic:default:seen")
        heard(one, b"event: ended")
    until(lambda: not guarded.served.service.guard.decisions._active)


def test_too_many_viewers_are_told_to_load_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "VIEWERS_MAX", 1)
    with tms.connect(served.url) as bus:
        bus.create_topic("crowded")
    with viewer(served, "crowded") as first:
        heard(first, b"event: parts")
        with viewer(served, "crowded") as second:
            heard(second, b"HTTP/1.1 429")
    until(lambda: _is_free(served))


def test_one_principal_leaves_room_for_others(
    guarded: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "VIEWERS_OF_ONE_MAX", 1)
    guarded.served.service.engine.create_topic(TopicName.parse("roomy"), TopicSettings())
    many, other = (guarded.token(one, "observe topic:default:roomy") for one in ("many", "other"))
    with viewer(guarded.served, "roomy", many) as first:
        heard(first, b"event: parts")
        with viewer(guarded.served, "roomy", many) as second:
            assert b" 429 " in second.recv(1 << 16)
        with viewer(guarded.served, "roomy", other) as third:
            heard(third, b"event: parts")
    until(lambda: _is_free(guarded.served, many))


def _is_free(served: Served, session: str = "") -> bool:
    with viewer(served, "roomy" if session else "crowded", session) as again:
        return b" 200 " in again.recv(1 << 16)
