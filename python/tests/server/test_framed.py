"""Connections of clients that send frames: their bounds, and the ends of single connections."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from tms.compat.tephra.frames import FrameLimits
from tms.errors import Invalid, Malformed, TimedOut
from tms.server.framed import SMALL_BYTES, FramedConnection, FramedLimits, FramedServer

PEER = ("127.0.0.1", 40_000)
FRAME = (1).to_bytes(4, "big") + b"x"


def transport_to(peer: tuple[Any, ...] | None = PEER) -> Mock:
    """The connection to a client, which the other side has reset if it has no `peer`."""
    transport = Mock(asyncio.Transport)
    transport.get_extra_info = {"peername": peer, "socket": Mock()}.get
    transport.is_closing.return_value = False
    return transport


def server_of(answer: Callable[..., Awaitable[bytes]]) -> FramedServer:
    return FramedServer("echo", Mock(socket.socket), answer, FramedLimits())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def connected(
    answer: Callable[..., Awaitable[bytes]],
) -> tuple[FramedServer, Mock, FramedConnection]:
    server, transport = server_of(answer), transport_to()
    connection = FramedConnection(server)
    connection.connection_made(transport)
    return server, transport, connection


async def echo(_: FramedConnection, frame: bytes) -> bytes:
    return frame


@pytest.mark.parametrize("limits", [FramedLimits, FrameLimits])
def test_a_frame_for_which_there_is_never_room_is_refused_in_the_settings(
    limits: type[FramedLimits],
) -> None:
    with pytest.raises(Invalid, match="frame_bytes_max is at most frames_bytes_max, 1000000, got"):
        limits(frame_bytes_max=1_000_001, frames_bytes_max=1_000_000)
    assert limits(frame_bytes_max=1_000_000, frames_bytes_max=1_000_000)
    assert limits(frame_bytes_max=SMALL_BYTES, frames_bytes_max=1), "small frames need no room"


@pytest.mark.parametrize("peer", [PEER, None, ("",)])
def test_a_client_that_is_gone_before_its_address_is_known_is_not_counted(
    peer: tuple[Any, ...] | None,
) -> None:
    async def connect() -> None:
        server, transport = server_of(echo), transport_to(peer)
        FramedConnection(server).connection_made(transport)
        known = peer == PEER
        assert (len(server.connections), transport.abort.called) == (int(known), not known)

    asyncio.run(connect())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimedOut("The commit takes too long."), "The commit takes too long."),
        (Malformed("It is no message."), "It is no message."),
        (TimeoutError(), "it took too long to send a frame or to read an answer"),
        (ZeroDivisionError("zero"), "ZeroDivisionError('zero')"),
    ],
)
def test_the_log_says_for_which_error_a_connection_was_ended(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> bytes:
        raise error

    async def send() -> None:
        connection, transport = FramedConnection(server_of(refuse)), transport_to()
        connection.connection_made(transport)
        connection.data_received(FRAME)
        await turns()
        assert transport.abort.called

    asyncio.run(send())
    [line] = [record.getMessage() for record in caplog.records]
    assert "echo_connection_ended" in line and reason in line


def test_a_connection_that_rests_begins_no_frame_before_it_may() -> None:
    owed = [0.02, 0.01, 0.0]
    answered: list[bytes] = []

    async def answer(connection: FramedConnection, frame: bytes) -> bytes:
        answered.append(frame)
        if len(answered) == 1:
            connection.rest(lambda: owed.pop(0) if owed else 0.0)
        return frame

    async def send() -> None:
        _, _, connection = connected(answer)
        connection.data_received(FRAME * 2)
        await turns()
        assert len(answered) == 1 and connection.size == 0  # it keeps no room meanwhile
        await asyncio.sleep(0.2)
        assert len(answered) == 2 and not owed

    asyncio.run(send())


@pytest.mark.parametrize(
    ("end", "frames", "answers"),
    [
        (FramedConnection.eof_received, 1, 1),  # it does not wait for nothing
        (FramedConnection.eof_received, 2, 1),  # the answer comes no sooner
        (FramedConnection.end_reading, 2, 2),  # what was received is answered
    ],
    ids=["all answered", "not all answered", "the server ends it"],
)
def test_a_connection_that_rests_and_ends_leaves_nothing(
    end: Callable[[FramedConnection], object], frames: int, answers: int
) -> None:
    """The connection is closed once every frame is answered."""

    async def answer(connection: FramedConnection, frame: bytes) -> bytes:
        connection.rest(lambda: 1_000.0)
        return frame

    async def send() -> None:
        server, transport, connection = connected(answer)
        connection.data_received(FRAME * frames)
        await turns()
        assert transport.writelines.call_count == 1
        end(connection)
        await turns()
        assert transport.writelines.call_count == answers
        assert transport.close.called == (answers == frames)
        connection.connection_lost(None)
        assert connection.has_left and not server.connections and connection._resting is None

    asyncio.run(send())


def test_a_connection_takes_small_frames_until_it_may_send_large_ones() -> None:
    async def send() -> None:
        for is_allowed in (False, True):
            connection, transport = FramedConnection(server_of(echo)), transport_to()
            connection.connection_made(transport)
            connection.limit_frames(10)
            if is_allowed:
                connection.allow_frames()
            connection.data_received((11).to_bytes(4, "big"))
            assert transport.abort.called is not is_allowed
            connection.connection_lost(None)

    asyncio.run(send())
