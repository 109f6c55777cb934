"""HTTP without I/O: answers come out whole, however their bytes are cut."""

from collections import deque
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.api import routes
from tms.api.operations import OPERATIONS
from tms.client.http.answers import AnswerReader
from tms.client.http.connection import HttpConnection
from tms.client.http.exchange import Calls, Response
from tms.client.http.transport import HttpTransport
from tms.client.transport import FetchRequest
from tms.errors import ConfigError, Malformed, Overloaded, TMSError
from tms.model.message import Fetched, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName

NAME = TopicName.parse("team:orders")


def reader() -> AnswerReader:
    return AnswerReader("http://test")


def fed(to: AnswerReader, data: bytes) -> list[Response]:
    """The answers that result from these bytes, as many at a time as the reader has room for."""
    answers: list[Response] = []
    while data:
        buffer = to.buffer
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        answers += to.buffer_updated(count)
        data = data[count:]
    return answers


def sized(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nX-A:  b \r\nContent-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;e=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nT: x\r\n\r\n"


NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    size=st.integers(1, 50),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=200),
)
def test_answers_come_out_in_order_however_the_bytes_are_cut(
    bodies: list[bytes], size: int, cuts: list[int]
) -> None:
    data = b"".join(sized(body) + chunked(body, size) + NOTHING for body in bodies)
    to, found = reader(), []
    for cut in cuts:
        found += fed(to, data[:cut])
        data = data[cut:]
    found += fed(to, data)
    assert [bytes(answer.body) for answer in found] == [
        part for body in bodies for part in (body, body, b"")
    ]
    assert found[0].headers[b"x-a"] == b"b"
    assert not to.parsed.begun


def test_a_big_body_is_received_where_it_stays() -> None:
    body = bytes(range(256)) * 4_096
    to = reader()
    head_end = len(sized(body)) - len(body)
    assert fed(to, sized(body)[: head_end + 10]) == []
    assert len(to.buffer) == len(body) - 10
    (answer,) = fed(to, sized(body)[head_end + 10 :])
    assert answer.body == body


def test_a_body_is_used_again_only_when_nobody_looks_at_it() -> None:
    to = AnswerReader("http://test", bodies_kept=2)
    sizes = [100_000, 120_000, 90_000, 200_000, 100_000, 100_000]
    held: list[Response] = []
    for n, size in enumerate(sizes):
        held += fed(to, sized(bytes([n]) * size))
        if n % 2:
            del held[0]
        kept = range(n + 1)[-len(held) :]
        assert [bytes(a.body) for a in held] == [bytes([k]) * sizes[k] for k in kept]
    one, two = (id(memoryview(answer.body).obj) for answer in held[-2:])
    assert one != two
    held.clear()
    (answer,) = fed(to, sized(b"x" * 150_000))
    assert id(memoryview(answer.body).obj) in (one, two) and answer.body == b"x" * 150_000


@pytest.mark.parametrize("size", [1_000, 100_000, 3_000_000])
def test_a_chunk_may_be_larger_than_the_buffer(size: int) -> None:
    body = b"x" * 2_500_000
    (answer,) = fed(reader(), chunked(body, size))
    assert answer.body == body


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    to = reader()
    assert fed(to, b"HTTP/1.0 502 Bad\r\n\r\nbroken") == []
    answer = to.end()
    assert answer is not None and answer.body == b"broken"


def test_an_answer_that_ends_too_early_is_none() -> None:
    whole = sized(b"body")
    for end in range(1, len(whole)):
        to = reader()
        assert fed(to, whole[:end]) == [] and to.parsed.begun
        assert to.end() is None


def test_the_connection_is_kept_unless_the_service_says_otherwise() -> None:
    (kept,) = fed(reader(), sized(b""))
    (closed,) = fed(reader(), sized(b"").replace(b"X-A:  b", b"connection: Close"))
    assert kept.keeps_open and not closed.keeps_open


@pytest.mark.parametrize(
    "said",
    [
        b"Connection: foo, close",
        b"Connection: close\r\nConnection: keep-alive",
        b"connection: keep-alive\r\nConnection: CLOSE",
    ],
)
def test_the_connection_ends_if_any_of_its_headers_says_so(said: bytes) -> None:
    (answer,) = fed(reader(), sized(b"").replace(b"X-A:  b", said))
    assert not answer.keeps_open


def test_the_connection_of_an_answer_of_an_old_proxy_is_kept_only_on_its_word() -> None:
    old = sized(b"").replace(b"HTTP/1.1", b"HTTP/1.0")
    (closed,) = fed(reader(), old)
    (kept,) = fed(reader(), old.replace(b"X-A:  b", b"Connection: keep-alive"))
    assert kept.keeps_open and not closed.keeps_open


def test_the_last_of_repeated_headers_counts_whatever_the_case_of_its_name() -> None:
    (answer,) = fed(reader(), sized(b"").replace(b"X-A:  b", b"x-a: a\r\nX-a: b\r\nX-A:c"))
    assert answer.headers[b"x-a"] == b"c"


def test_a_header_that_goes_on_in_the_next_line_is_refused() -> None:
    with pytest.raises(Malformed, match="whitespace"):
        fed(reader(), sized(b"").replace(b"X-A:  b", b"X-A: a\r\n b"))


def test_a_trailer_is_no_header() -> None:
    (answer,) = fed(reader(), chunked(b"x", 1).replace(b"T: x", b"Transfer-Encoding: x"))
    assert answer.headers == {b"transfer-encoding": b"chunked"}


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        chunked(b"x", 1)[:-2] + b"t: " + b"x" * 140_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000,
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 xyz\r\n\r\n",
    ],
)
def test_what_is_not_http_is_an_error(data: bytes) -> None:
    with pytest.raises((Malformed, ConfigError)):
        fed(reader(), data)


@pytest.mark.parametrize("known", ["chunks", "end"])
def test_a_body_of_unknown_length_is_bounded(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tms.client.http.answers.BODY_BYTES_MAX", 100_000)
    body = b"x" * 100_001
    whole = b"HTTP/1.1 200 OK\r\n\r\n" + body
    data = chunked(body, 60_000) if known == "chunks" else whole
    with pytest.raises(Malformed, match="more than 100000 bytes"):
        fed(reader(), data)


def test_an_informational_answer_is_none() -> None:
    (answer,) = fed(reader(), b"HTTP/1.1 100 Continue\r\n\r\n" + sized(b"body"))
    assert (answer.status, answer.body) == (200, b"body")


def test_headers_of_an_informational_answer_are_not_those_of_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nX-A: early\r\nLink: a\r\n\r\n"
    (answer,) = fed(reader(), early + sized(b"body"))
    assert answer.headers == {b"x-a": b"b", b"content-length": b"4"}


def test_informational_answers_without_end_are_an_error() -> None:
    with pytest.raises(Malformed, match="head over"):
        fed(reader(), b"HTTP/1.1 100 Continue\r\n\r\n" * 6_000)


@given(st.binary(max_size=200), st.integers(0, 100))
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes, end: int) -> None:
    for begin in (b"", sized(b"")[:end], chunked(b"abc", 2)[:end]):
        try:
            fed(reader(), begin + data)
        except TMSError:
            continue


def test_an_append_is_one_head_and_the_framed_blocks() -> None:
    calls = Calls("host:7070", "http://host:7070")
    block = b"TMSB" + bytes(100)
    call = calls.append(NAME, [NewBlock(3, block)], Durability.WRITTEN)
    head, _, body = b"".join(call.chunks).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v2/namespaces/team/topics/orders/messages?durability=written HTTP/1.1"
    assert "Host: host:7070" in lines
    assert f"Content-Type: {routes.BLOCKS}" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert body[24:] == block


def test_the_place_of_a_request_is_known_by_its_types_too() -> None:
    calls = Calls("host:7070", "http://host:7070")
    describe = OPERATIONS["transactions.describe"]
    for id, text in ((True, b"True"), (1, b"1"), (1.0, b"1.0"), (1, b"1")):
        (head,) = calls.of(describe, {"id": id}).chunks
        assert bytes(head).startswith(b"GET /v2/transactions/%b HTTP/1.1\r\n" % text)


def test_receives_that_want_the_same_share_a_request_that_nothing_changes() -> None:
    calls = Calls("host:7070", "http://host:7070")
    call = calls.receive(NAME, "g", 1, 5.0, 1_000)
    assert calls.receive(NAME, "g", 1, 5.0, 1_000) is call
    with pytest.raises(AttributeError, match="immutable"):
        call.operation = "another"  # type: ignore[misc]


def test_a_fetch_names_each_partition_s_position() -> None:
    calls = Calls("host:7070", "http://host:7070")
    positions = [
        PartitionPosition(0, Position.earliest()),
        PartitionPosition(2, Position.offset(7)),
    ]
    (head,) = calls.fetch(FetchRequest(NAME, positions, 1_000, 0.25)).chunks
    assert head.startswith(  # type: ignore[union-attr]
        b"GET /v2/namespaces/team/topics/orders/messages"
        b"?start=0:earliest,2:offset:7&bytes_max=1000&wait_s=0.25 HTTP/1.1\r\n"
    )


def read(answer: Response) -> Fetched:
    positions = [PartitionPosition(0, Position.earliest())]
    return Calls("h:1", "http://h:1").fetch(FetchRequest(NAME, positions, 1, 0)).read(answer)


def test_a_fetch_without_its_headers_is_not_believed() -> None:
    with pytest.raises(ConfigError, match="TMS-Next"):
        read(Response(routes.OK, {}, b""))
    headers = {b"tms-next": b"latest", b"tms-end": b"0:1", b"tms-reached": b""}
    with pytest.raises(Malformed):
        read(Response(routes.OK, headers, b""))
    with pytest.raises(Malformed):
        read(Response(routes.OK, headers | {b"tms-next": b"0:latest"}, b"xxx"))


def test_retry_after_reaches_the_error() -> None:
    status, body = routes.problem(Overloaded("Full."))
    headers = {b"content-type": routes.PROBLEM.encode(), b"retry-after": b"7"}
    with pytest.raises(Overloaded) as caught:
        read(Response(status, headers, body))
    assert caught.value.details["retry_after_s"] == 7


def test_closing_a_bus_meets_threads_that_take_its_connections() -> None:
    class Raced(deque[HttpConnection]):
        """Another thread takes what it has at the moment of a `pop`."""

        def pop(self) -> HttpConnection:  # type: ignore[override]
            self.clear()
            return super().pop()

    transport = HttpTransport("http://127.0.0.1:1")
    transport._idle[transport.addresses.now] = Raced([Mock(spec=HttpConnection)])
    transport.close()
