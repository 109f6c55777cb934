"""The memory in flight of a request: as much as it needs, and after a moment's wait."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator

import pytest
import zstandard

from tests import cdap_kit
from tests.http_kit import Answer, Served, request, serving
from tms.api import routes
from tms.compat.cdap.avro import PublishRequest
from tms.errors import BadEncoding, DecompressedTooLarge, Overloaded, without_frames
from tms.server.http.encoding import decompress, plain_bytes
from tms.server.http.request import Budget
from tms.server.service import RequestLimits

CROWD = 64
AVRO = "avro/binary"
SMALL = json.dumps({"messages": [{"value": "a"}]}).encode()
SMALL_AVRO = cdap_kit.encode_publish(PublishRequest(None, [b"a"]))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A service with the default bounds, where no request waits: one that reserves too much is
    refused."""
    with serving(limits=RequestLimits(budget_wait_s=0)) as running:
        running.create("t")
        with running.connect() as client:
            assert client.request("PUT", "/v1/namespaces/default/topics/c", b"").status == 200
        yield running


def at_once(served: Served, raw: bytes) -> list[Answer]:
    """The answers to requests whose last bytes come only when all others are there."""
    clients = [served.connect() for _ in range(CROWD)]
    for client in clients:
        client.send(raw[:-1])
    for client in clients:
        client.send(raw[-1:])
    try:
        return [client.answer() for client in clients]
    finally:
        for client in clients:
            client.socket.close()


def chunked(path: str, media: str, body: bytes, coding: str = "") -> bytes:
    said = f"Content-Encoding: {coding}\r\n" if coding else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media}\r\n{said}"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


V1, V2 = "/v1/namespaces/default/topics/c/publish", "/v2/namespaces/default/topics/t/messages"


@pytest.mark.parametrize("coding", ["", "gzip", "zstd"])
@pytest.mark.parametrize(
    ("path", "media", "body"), [(V1, AVRO, SMALL_AVRO), (V2, routes.JSON, SMALL)]
)
def test_row_38b_a_crowd_with_few_bytes_of_unknown_length_is_served(
    served: Served, path: str, media: str, body: bytes, coding: str
) -> None:
    packed = {"": body, "gzip": gzip.compress(body), "zstd": zstandard.compress(body)}[coding]
    assert {answer.status for answer in at_once(served, chunked(path, media, packed, coding))} == {
        200
    }
    if coding:
        raw = request("POST", path, packed, media=media, Content_Encoding=coding)
        assert {answer.status for answer in at_once(served, raw)} == {200}
    assert served.service.publishing.bytes == 0


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_compressed_body_is_measured_before_memory_is_taken_for_it(coding: str) -> None:
    plain = bytes(300_000) + b"end"
    if coding == "zstd":  # without a declared size
        machine = zstandard.ZstdCompressor().compressobj()
        packed = machine.compress(plain) + machine.flush()
    else:
        packed = gzip.compress(plain)
    assert plain_bytes(coding, packed, 1 << 20) == len(plain)
    assert decompress(coding, packed, len(plain)) == plain
    with pytest.raises(DecompressedTooLarge):
        plain_bytes(coding, packed, len(plain) - 1)


def test_gzip_data_that_holds_more_than_it_claims_is_damaged() -> None:
    packed = bytearray(gzip.compress(bytes(1_000_000)))
    packed[-4:] = (10).to_bytes(4, "little")
    assert plain_bytes("gzip", packed, 1 << 20) == 10
    with pytest.raises(BadEncoding):
        decompress("gzip", packed, 10)
    packed[-4:] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(BadEncoding):
        plain_bytes("gzip", packed, 1 << 21)


def test_who_finds_no_memory_waits_for_it_and_is_refused_after_a_moment() -> None:
    async def run() -> None:
        budget = Budget("publish", 100, wait_s=30)
        await budget.claim(80)
        second = asyncio.create_task(budget.claim(50))
        await asyncio.sleep(0)
        assert not second.done() and budget.bytes == 80
        budget.release(40)
        await second
        assert budget.bytes == 90 and budget.refused == 0
        budget.wait_s = 0.01
        with pytest.raises(Overloaded, match="90 bytes of publish"):
            await budget.claim(50)
        assert budget.bytes == 90 and budget.refused == 1

    asyncio.run(run())


def test_a_publish_waits_until_others_are_done() -> None:
    limits = RequestLimits(
        body_bytes_max=1 << 20, publish_bytes_in_flight_max=1 << 20, budget_wait_s=20
    )
    with serving(limits=limits) as served:
        topic = served.create("a") + "/messages"
        body = json.dumps({"messages": [{"value": "x" * 700_000}]}).encode()
        raw = request("POST", topic, body, media=routes.JSON)
        first, second = served.connect(), served.connect()
        first.send(raw[:-1])
        while not served.service.publishing.bytes:
            threading.Event().wait(0.01)
        second.send(raw)
        while not served.service.publishing._waiting:
            threading.Event().wait(0.01)
        first.send(raw[-1:])
        assert (first.answer().status, second.answer().status) == (200, 200)


def test_so_many_requests_wait_for_memory_and_one_more_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.server.http.request.WAITING_MAX", 2)

    async def claims() -> tuple[list[object], int]:
        budget = Budget("fetch", 10, wait_s=60)
        assert budget.try_take(10)
        waiting = [asyncio.ensure_future(budget.claim(5)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await budget.claim(5)
        budget.release(10)
        return await asyncio.gather(*waiting, return_exceptions=True), budget.bytes

    assert asyncio.run(claims()) == ([None, None], 10)


@pytest.mark.timeout(10)
def test_the_frames_of_an_error_that_is_its_own_cause_are_forgotten() -> None:
    try:
        error = ValueError("again")
        raise error from error
    except ValueError as raised:
        found = raised
    without_frames(found)
    assert found.__traceback__ is None
