"""Connections: pipelining, long bodies, slow and stalled clients, limits, the watchdog's clock."""

import contextlib
import gc
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_kit import Client, Served, request, serving
from tests.waiting import until
from tms import block
from tms.api import bodies, routes
from tms.model.message import NewBlock
from tms.server.http.progress import LINGER_S, ConnectionProgress, ConnectionVerdict, Phase
from tms.server.http.protocol import PIPELINE_MAX, TURNED_AWAY_MAX
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import RequestLimits

QUICK = ConnectionLimits(head_timeout_s=2, body_timeout_s=2, write_timeout_s=2, keep_alive_s=3)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(connection_limits=QUICK) as running:
        running.create("a")
        yield running


PATH = "/v2/namespaces/default/topics/a/messages"


def framed(*values: bytes) -> bytes:
    return b"".join(bodies.frames([NewBlock(0, block.encode(list(values)))]))


def publish(body: bytes) -> bytes:
    return request("POST", f"{PATH}?durability=written", body, media=routes.BLOCKS)


# -- pipelining and bodies ---------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_their_order(client: Client) -> None:
    client.send(b"".join(publish(framed(b"%d" % n)) for n in range(PIPELINE_MAX)))
    offsets = [client.answer().json["appended"][0]["base_offset"] for _ in range(PIPELINE_MAX)]
    assert offsets == list(range(offsets[0], offsets[0] + PIPELINE_MAX))


def test_two_requests_in_flight_with_large_bodies_keep_their_order(client: Client) -> None:
    body = publish(framed(*[bytes(1_000)] * 1_000))
    client.send(body)
    offsets = []
    for _ in range(20):
        client.send(body)
        offsets.append(client.answer().json["appended"][0]["base_offset"])
    offsets.append(client.answer().json["appended"][0]["base_offset"])
    assert offsets == [offsets[0] + 1_000 * n for n in range(21)]


def test_a_long_poll_does_not_let_later_answers_overtake(served: Served, client: Client) -> None:
    end = client.request("GET", f"{PATH}?start=latest").headers["tms-next"]
    client.send(request("GET", f"{PATH}?start={end}&wait_s=20") + request("GET", "/livez"))
    with served.connect() as other:
        other.send(publish(framed(b"now")))
        assert other.answer().status == routes.OK
    assert client.answer().json["messages"][0]["value"] == "now"
    assert client.answer().json == {"alive": True}


def test_too_many_requests_at_once_end_the_connection_after_their_answers(client: Client) -> None:
    client.send(request("GET", f"{PATH}?start=latest&wait_s=0.5"))
    client.send(request("GET", "/livez") * (PIPELINE_MAX + 1))
    assert [client.answer().status for _ in range(PIPELINE_MAX + 1)] == [routes.OK] * (
        PIPELINE_MAX + 1
    )
    assert client.answer().problem == "overloaded"
    assert client.is_closed()


def test_a_request_may_come_byte_by_byte(client: Client) -> None:
    for number in publish(framed(b"slowly")):
        client.send(bytes([number]))
    assert client.answer().status == routes.OK


def test_a_broken_request_behind_a_good_one_is_answered_second(client: Client) -> None:
    client.send(request("GET", "/livez") + b"nonsense\r\n\r\n")
    assert client.answer().status == routes.OK
    assert client.answer().status in (400, 501)
    assert client.is_closed()


def test_a_chunked_body_is_read(client: Client) -> None:
    body = framed(b"in", b"chunks")
    client.send(
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: {routes.BLOCKS}\r\n\r\n".encode()
        + b"".join(b"1\r\n%c\r\n" % each for each in body)
        + b"0\r\n\r\n"
    )
    assert client.answer().json["appended"][0]["count"] == 2


def test_a_client_that_asks_may_go_on_with_its_body(client: Client) -> None:
    body = framed(b"after a hundred")
    head, _, rest = publish(body).partition(b"\r\n\r\n")
    client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert client._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
    client.send(rest)
    assert client.answer().status == routes.OK


def test_a_client_that_asks_is_refused_before_it_sends(client: Client) -> None:
    client.send(
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n"
        "Expect: 100-continue\r\n\r\n".encode()
    )
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (415, "close")


def test_head_requests_get_heads(client: Client) -> None:
    answer = client.request("HEAD", "/livez")
    assert (answer.status, answer.body) == (routes.OK, b"")
    assert client.request("GET", "/livez").status == routes.OK


def test_http_1_0_is_answered_and_closed(client: Client) -> None:
    client.send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert client.answer().status == routes.OK
    assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "Host"),
        (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", "HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1"),
    ],
)
def test_other_protocols_are_told_what_is_spoken_here(
    client: Client, sent: bytes, said: str
) -> None:
    client.send(sent)
    answer = client.answer()
    assert answer.problem == "malformed"
    assert said in answer.json["detail"]


def test_an_upgrade_is_ignored(client: Client) -> None:
    client.send(
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    )
    assert client.answer().status == routes.OK


def test_a_client_that_sends_no_more_still_gets_its_answer(client: Client) -> None:
    client.send(publish(framed(b"last words")))
    client.socket.shutdown(socket.SHUT_WR)
    assert client.answer().status == routes.OK
    assert client.is_closed()


def test_every_answer_names_its_request(client: Client) -> None:
    seen = {client.request("GET", "/livez").headers["tms-request-id"] for _ in range(10)}
    assert len(seen) == 10


# -- slow and many clients ---------------------------------------------------------------------


def test_a_silent_connection_is_closed(served: Served) -> None:
    with served.connect() as fresh, served.connect() as used:
        assert used.request("GET", "/livez").status == routes.OK
        assert fresh.is_closed()  # which waits for the socket's time-out
        assert used.is_closed()


def test_a_client_that_leaves_ends_its_long_poll(served: Served) -> None:
    with served.connect() as leaving:
        leaving.send(request("GET", f"{PATH}?start=latest&wait_s=60"))
        until(lambda: served.service.metrics.long_polls == 1)
    until(lambda: served.service.metrics.long_polls == 0)


def test_connections_beyond_the_limit_are_told_so_and_those_before_served() -> None:
    limits = ConnectionLimits(connections_max=5)
    with serving(connection_limits=limits) as served, contextlib.ExitStack() as stack:
        inside = [stack.enter_context(served.connect()) for _ in range(5)]
        for client in inside:
            assert client.request("GET", "/livez").status == routes.OK
        for _ in range(3):
            with served.connect() as outside:
                answer = outside.answer()
                assert (answer.status, answer.problem) == (503, "unavailable")
                assert outside.is_closed()
        crowd = [stack.enter_context(served.connect()) for _ in range(TURNED_AWAY_MAX + 20)]
        assert crowd[-1].is_closed()
        assert served.service.watchdog.refused >= 23
        for client in inside:
            assert client.request("GET", "/livez").status == routes.OK


CONSUMERS = 1_000


def test_a_thousand_consumers_that_do_not_read_cost_little_and_are_cut_off() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONSUMERS + 200
    assert hard >= wanted, f"this test needs {wanted} descriptors, the limit is {hard}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    limits = ConnectionLimits(write_timeout_s=5)
    with (
        serving(limits=RequestLimits(), connection_limits=limits) as served,
        contextlib.ExitStack() as stack,
    ):
        path = served.create("big") + "/messages"
        with served.connect() as client:
            for _ in range(16):
                body = framed(*[bytes(1_000)] * 500)
                answer = client.request("POST", path, body, media=routes.BLOCKS)
                assert answer.status == routes.OK
        gc.collect()
        before = resident_bytes()
        query = f"{path}?start=0:earliest&bytes_max=8000000"
        for _ in range(CONSUMERS):
            stalled = stalled_consumer(served)
            stack.enter_context(stalled)
            stalled.sendall(request("GET", query, Accept=routes.BLOCKS))
        with served.connect() as other:
            for _ in range(20):
                assert other.request("GET", "/livez").status == routes.OK
                answer = other.request("GET", f"{path}?start=latest", Accept=routes.BLOCKS)
                assert answer.status == routes.OK
            assert resident_bytes() - before <= 32 << 20
            until(lambda: served.service.watchdog.cut_off > 0)  # otherwise buffers hold everything
            until(lambda: served.service.fetching.bytes == 0)


def stalled_consumer(served: Served) -> socket.socket:
    """A connection with a small window."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(20)
    made.connect(served.address)
    return made


def resident_bytes() -> int:
    """Memory of this process, the service included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- the clock of a connection -----------------------------------------------------------------

LIMITS = ConnectionLimits()


def verdict(
    progress: ConnectionProgress, now: float, unsent: int = 0, **more: bool
) -> ConnectionVerdict:
    asked = {"busy": False, "held_up": False, **more}
    return progress.verdict(now, unsent, **asked)


def enter(progress: ConnectionProgress, phase: Phase, now: float) -> None:
    """Begin a phase, and let the watchdog look."""
    progress.phase, progress.moved = phase, True
    assert verdict(progress, now) is ConnectionVerdict.GO_ON


def test_headers_have_ten_seconds_however_they_trickle() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    enter(progress, Phase.HEAD, 5)
    assert verdict(progress, 14) is ConnectionVerdict.GO_ON
    assert verdict(progress, 15) is ConnectionVerdict.HEAD_TOO_SLOW


def test_a_body_may_be_long_but_not_slow() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    enter(progress, Phase.BODY, 0)
    for second in range(1, 60):
        progress.body_bytes += LIMITS.body_bytes_per_s_min
        assert verdict(progress, second) is ConnectionVerdict.GO_ON
    for second in range(60, 80):
        progress.body_bytes += 10
        if verdict(progress, second) is ConnectionVerdict.BODY_TOO_SLOW:
            break
    else:
        pytest.fail("ten bytes a second were fast enough")


def test_a_silent_body_has_ten_seconds() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    enter(progress, Phase.BODY, 0)
    progress.body_bytes += 1 << 20
    assert verdict(progress, 3) is ConnectionVerdict.GO_ON
    assert verdict(progress, 9) is ConnectionVerdict.GO_ON
    assert verdict(progress, 13) is ConnectionVerdict.BODY_TOO_SLOW


def test_waiting_for_the_service_does_not_count() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    enter(progress, Phase.BODY, 0)
    for second in range(100):
        assert verdict(progress, second, held_up=True) is ConnectionVerdict.GO_ON
    assert verdict(progress, 105) is ConnectionVerdict.GO_ON


def test_an_answer_that_is_read_slowly_goes_on_and_one_that_is_not_read_ends() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    progress.bytes_written += 1_000
    for second in range(50):
        assert verdict(progress, second, unsent=1_000 - second) is ConnectionVerdict.GO_ON
    assert verdict(progress, 58, unsent=951) is ConnectionVerdict.GO_ON
    assert verdict(progress, 59, unsent=951) is ConnectionVerdict.CUT_OFF


def test_under_memory_pressure_only_unread_answers_are_cut_off() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    progress.bytes_written += 1_000
    for second in range(50):
        assert (
            verdict(progress, second, unsent=1_000 - second, short=True) is ConnectionVerdict.GO_ON
        )
    assert verdict(progress, 49.9, unsent=951, short=True) is ConnectionVerdict.GO_ON
    assert verdict(progress, 51, unsent=951) is ConnectionVerdict.GO_ON
    assert verdict(progress, 51, unsent=951, short=True) is ConnectionVerdict.CUT_OFF


def test_as_much_unsent_as_before_is_progress_when_more_was_written() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    for second in range(0, 100, 5):
        progress.bytes_written += 500
        assert verdict(progress, second, unsent=500) is ConnectionVerdict.GO_ON


def test_an_idle_connection_is_kept_as_configured_but_never_while_an_answer_is_made() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    progress.served = True
    enter(progress, Phase.IDLE, 10)
    assert verdict(progress, 10 + LIMITS.keep_alive_s) is ConnectionVerdict.GO_ON
    assert verdict(progress, 11 + LIMITS.keep_alive_s, busy=True) is ConnectionVerdict.GO_ON
    assert verdict(progress, 11 + LIMITS.keep_alive_s) is ConnectionVerdict.CLOSE


def test_lingering_ends() -> None:
    progress = ConnectionProgress(LIMITS, 0)
    enter(progress, Phase.LINGER, 1)
    assert verdict(progress, 1 + LINGER_S) is ConnectionVerdict.GO_ON
    assert verdict(progress, 1.1 + LINGER_S) is ConnectionVerdict.CUT_OFF
