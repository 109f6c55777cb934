"""Connections of Thrift clients: bounded, one frame at a time, answered in order, without leaks."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import ip_network
from random import Random

import pytest
import uvloop

from tests.waiting import PATIENCE_S, until
from tms.compat.tephra.frames import FrameLimits, FrameServer
from tms.compat.tephra.settings import TephraSection
from tms.errors import Malformed

Answer = Callable[[bytes], bytes]
FRAME_BYTES_MAX = FrameLimits().frame_bytes_max


def echo(raw: bytes) -> bytes:
    if raw.startswith(b"bad"):
        raise Malformed("These bytes are no Thrift message (bad).")
    return raw[::-1]


class Running:
    """A server on a loop of its own."""

    def __init__(self, answer: Answer, limits: FrameLimits) -> None:
        self.server: FrameServer
        self._stop: Callable[[float], None]
        started: Future[None] = Future()
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()[:2]

        async def run() -> None:
            loop, asked = asyncio.get_running_loop(), asyncio.Event()
            timeout_s = 5.0

            def stop(after_s: float) -> None:
                nonlocal timeout_s
                timeout_s = after_s
                with contextlib.suppress(RuntimeError):  # it has stopped
                    loop.call_soon_threadsafe(asked.set)

            self._stop = stop
            self.server = FrameServer(listener, answer, limits)
            await self.server.start()
            started.set_result(None)
            await asked.wait()
            await self.server.drain(timeout_s)

        self.thread = threading.Thread(target=lambda: uvloop.run(run()))
        self.thread.start()
        started.result(PATIENCE_S)

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop(timeout_s)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 20)


class Slow:
    """Answers the request itself once `go` is set."""

    def __init__(self) -> None:
        self.working = threading.Event()
        self.go = threading.Event()

    def __call__(self, raw: bytes) -> bytes:
        self.working.set()
        self.go.wait(PATIENCE_S)
        return raw


SMALL_ROOM = {"frame_bytes_max": 1_000_000, "frames_bytes_max": 1_000_000}


@contextlib.contextmanager
def running(answer: Answer = echo, **limits: float) -> Iterator[Running]:
    found = Running(answer, FrameLimits(**limits))  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.stop()
        found.thread.join(PATIENCE_S)
        assert not found.thread.is_alive()
        assert not found.server.connections
        assert found.server.room == found.server.limits.frames_bytes_max


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answered(connection: socket.socket) -> bytes:
    return exactly(connection, int.from_bytes(exactly(connection, 4), "big"))


def exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = connection.recv(min(count - len(found), 1 << 20))
        assert part, "the connection ended"
        found += part
    return bytes(found)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_frames_are_answered_in_order_however_they_come() -> None:
    with running() as there, there.connect() as connection:
        bodies = [b"%d" % number * (number + 1) for number in range(40)]
        sent = b"".join(map(frame, bodies))
        for start in range(0, len(sent), 7):
            connection.sendall(sent[start : start + 7])
        assert [answered(connection) for _ in bodies] == [body[::-1] for body in bodies]


def test_the_largest_frame_is_taken_and_a_larger_or_negative_one_ends_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as there, there.connect() as stays:
        body = bytes(FRAME_BYTES_MAX)
        stays.sendall(frame(body))
        assert answered(stays) == body
        for size in (FRAME_BYTES_MAX + 1, -1, 0, -(2**31)):
            caplog.clear()
            with there.connect() as connection:
                connection.sendall(size.to_bytes(4, "big", signed=True))
                assert ended(connection)
            assert len(caplog.records) == 1 and f"a frame of {size} bytes" in caplog.text
        stays.sendall(frame(b"ab"))
        assert answered(stays) == b"ba"


def test_what_is_no_message_ends_its_connection_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as there, there.connect() as stays, there.connect() as connection:
        connection.sendall(frame(b"bad") + frame(b"good"))
        assert ended(connection)
        assert len(caplog.records) == 1 and "no Thrift message" in caplog.text
        stays.sendall(frame(b"ab"))
        assert answered(stays) == b"ba"


@pytest.mark.parametrize("begun", [b"\0", frame(b"abc")[:-1], frame(bytes(100_000))[:500]])
def test_half_a_frame_is_cut_off_and_an_idle_connection_is_not(
    begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with running(frame_timeout_s=0.2) as there, there.connect() as idle:
        with there.connect() as connection:
            connection.sendall(begun)
            assert ended(connection)
        assert len(caplog.records) == 1 and "too long" in caplog.text
        idle.sendall(frame(b"ab"))
        assert answered(idle) == b"ba"


def test_who_does_not_read_an_answer_is_cut_off() -> None:
    with running(lambda _: bytes(64 << 20), frame_timeout_s=0.3) as there, there.connect() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.sendall(frame(bytes(100_000)))
        until(lambda: bool(there.server.connections))
        until(lambda: not there.server.connections)
        assert there.server.room == FrameLimits().frames_bytes_max


def test_connections_are_bounded_and_a_free_place_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(clients_max=2) as there:
        with there.connect() as one, there.connect() as two:
            for connection in (one, two):
                connection.sendall(frame(b"ab"))
                assert answered(connection) == b"ba"
            for _ in range(3):
                with there.connect() as third:
                    assert ended(third)
            assert len(caplog.records) == 1 and "clients_max=2" in caplog.text
        until(lambda: not there.server.connections)
        with there.connect() as again:
            again.sendall(frame(b"ab"))
            assert answered(again) == b"ba"


def test_many_connections_share_few_workers() -> None:
    names: set[str] = set()

    def noting(raw: bytes) -> bytes:
        names.add(threading.current_thread().name)
        return raw

    with running(noting, workers=2) as there, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(there.connect()) for _ in range(50)]
        for connection in connections:
            connection.sendall(frame(b"x"))
        assert [answered(connection) for connection in connections] == [b"x"] * 50
        assert 1 <= len(names) <= 2


def test_large_frames_wait_for_room_in_their_order() -> None:
    body = bytes(600_000)
    with (
        running(**SMALL_ROOM) as there,
        contextlib.ExitStack() as stack,
    ):
        first, second, third, small = (stack.enter_context(there.connect()) for _ in range(4))
        first.sendall(frame(body)[:1_000])
        until(lambda: there.server.room == 400_000)
        for count, connection in enumerate((second, third), 1):
            connection.sendall(frame(body)[:1_000])
            until(lambda count=count: len(there.server.waiting) == count)  # type: ignore[misc]
        small.sendall(frame(b"ab"))
        assert answered(small) == b"ba"
        first.sendall(frame(body)[1_000:])
        assert answered(first) == body
        second.sendall(frame(body)[1_000:])
        assert answered(second) == body
        third.close()
        first.sendall(frame(body))
        assert answered(first) == body


def test_a_stop_answers_what_was_received_and_takes_nothing_more() -> None:
    slow = Slow()
    with running(slow) as there, contextlib.ExitStack() as stack:
        busy, half, idle = (stack.enter_context(there.connect()) for _ in range(3))
        half.sendall(frame(b"abc")[:5])
        busy.sendall(frame(b"1") + frame(b"2"))
        slow.working.wait(PATIENCE_S)
        there.stop()
        assert ended(idle) and ended(half)
        with pytest.raises(OSError):
            there.connect()
        slow.go.set()
        assert [answered(busy), answered(busy)] == [b"1", b"2"]
        assert ended(busy)


def test_a_stop_does_not_wait_for_longer_than_it_was_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Slow()
    with running(slow) as there, there.connect() as busy:
        busy.sendall(frame(b"1"))
        slow.working.wait(PATIENCE_S)
        there.stop(0.1)
        assert ended(busy)
        assert "tephra_drain_incomplete" in caplog.text
        assert there.thread.is_alive(), "a worker still needs the engine"
        slow.go.set()


def test_a_client_that_closes_its_side_gets_its_answer() -> None:
    with running() as there, there.connect() as connection:
        connection.sendall(frame(b"ab"))
        connection.shutdown(socket.SHUT_WR)
        assert answered(connection) == b"ba"
        assert ended(connection)


def test_nothing_is_left_of_connections_that_end_anyhow() -> None:
    """Clients that go away in the middle of anything, with small and large frames."""
    random, threads = Random(5), threading.active_count()
    with running(workers=3, **SMALL_ROOM) as there:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            connection = there.connect()
            body = random.choice((b"abc", b"bad", bytes(200_000), bytes(900_000)))
            sent = frame(body)
            if random.random() < 0.7:
                sent = sent[: random.randrange(1, len(sent))]
            with contextlib.suppress(OSError):
                connection.sendall(sent)
            if random.random() < 0.3:
                linger = (1).to_bytes(4, "little") + bytes(4)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()
        until(lambda: not there.server.connections)
        with there.connect() as connection:
            connection.sendall(frame(bytes(900_000)))
            assert answered(connection) == bytes(900_000)
        until(lambda: not there.server.connections and not there.server.waiting)
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)
        assert threading.active_count() <= threads + 1 + 3 + 1


@pytest.mark.parametrize(
    ("allow", "address", "admitted"),
    [
        (None, "10.1.2.3", True),
        ("127.0.0.0/8,::1", "127.0.0.1", True),
        ("127.0.0.0/8,::1", "::ffff:127.0.0.1", True),
        ("127.0.0.0/8,::1", "::1", True),
        ("127.0.0.0/8,::1", "10.1.2.3", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("", "127.0.0.1", False),
    ],
)
def test_only_allowed_networks_are_let_in(allow: str | None, address: str, admitted: bool) -> None:
    section = TephraSection(port=0, allow=allow or "")
    limits = section.limits(10, is_guarded=allow is not None)
    assert limits.admits(address) is admitted


def test_a_connection_from_elsewhere_is_closed() -> None:
    found = Running(echo, FrameLimits(allow=(ip_network("192.0.2.0/24"),)))
    try:
        client = socket.create_connection(found.address, 10)
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    finally:
        found.stop()
        found.thread.join(PATIENCE_S)
