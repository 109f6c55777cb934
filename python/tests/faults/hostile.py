"""Requests of every kind that `tms serve` answers, each as hostile as possible, and the resources
that they need.

    KINDS[kind] ─▶ the requests of a crowd, one after another
    prepare(service) ─▶ topics, a queue, dead letters and delayed messages that they are about
"""

import gzip
import json
import struct
from collections.abc import Callable, Iterable

import zstandard

import tms
from tests.faults.service import Service
from tests.http_kit import Answer, Client, request
from tms import block
from tms.api import bodies, routes
from tms.block import Compression
from tms.compat.cdap.answers import AVRO
from tms.model.message import NewBlock

MIB = 1 << 20
TOPICS = "/v2/namespaces/default/topics"
CDAP = "/v1/namespaces/default/topics"
TRANSACTIONS = "/v2/transactions"
JSON, BLOCKS, ARROW, COMMIT = routes.JSON, routes.BLOCKS, routes.ARROW_STREAM, routes.COMMIT
HOUR = "delay_s=3600"
EVERYTHING = "start=earliest&bytes_max=1000000000"
VALUES = 499_000  # nearly as many as a body of JSON may hold


def post(path: str, body: bytes, media: str = JSON, **headers: str) -> bytes:
    return request("POST", path, body, media=media, **headers)


def text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def packed(values: list[bytes], count: int = 1, **more: object) -> bytes:
    """A compressed block, repeated."""
    made = bytes(block.encode(values, compression=Compression.ZSTD, **more))  # type: ignore[arg-type]
    return b"".join(bodies.frames([NewBlock(0, made)] * count))


def large(count: int) -> bytes:
    """Blocks of 2 KiB that unpack to 24 MiB."""
    return packed([bytes(8 * MIB - 100)] * 3, count)


def many(count: int) -> bytes:
    """Blocks of 60,000 messages that unpack to 26 MiB."""
    return packed([bytes(450)] * 60_000, count, keys=[b"%d" % n for n in range(60_000)])


def tiny(count: int) -> bytes:
    """Blocks of a byte."""
    return b"".join(bodies.frames([NewBlock(0, bytes(block.encode([b"x"])))] * count))


def bombs(media: str, path: str) -> list[bytes]:
    """Small bodies that unpack to the limit, or far beyond."""
    return [
        post(path, gzip.compress(bytes(16 * MIB), 1), media, Content_Encoding="gzip"),
        post(path, gzip.compress(bytes(300 * MIB), 1), media, Content_Encoding="gzip"),
        post(path, zstandard.compress(bytes(16 * MIB)), media, Content_Encoding="zstd"),
        post(path, zstandard.compress(bytes(400 * MIB)), media, Content_Encoding="zstd"),
    ]


def chunked(path: str, body: bytes, piece: int) -> bytes:
    """A body of unknown length in pieces of so many bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {JSON}\r\n"
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces)
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def commit(blocks: bytes = b"", id: str = routes.NEW_TRANSACTION, **head: object) -> bytes:
    written = text(head)
    body = struct.pack(">I", len(written)) + written + blocks
    return post(f"{TRANSACTIONS}/{id}/commit", body, COMMIT)


def long(number: int) -> bytes:
    """A number in Avro's encoding."""
    number, made = 2 * number, b""
    while number >= 0x80:
        number, made = number >> 7, made + bytes([number & 0x7F | 0x80])
    return made + bytes([number])


# -- the kinds -------------------------------------------------------------------------------------


def publish_json() -> list[bytes]:
    path = f"{TOPICS}/in/messages"
    return [
        post(path, text({"messages": [{"value": "a" * (8 * MIB - 100)}]})),
        post(path, text({"messages": [{"value": "\x01" * (2 * MIB)}]})),
        post(path, b'{"messages":[{"value":"%s"}]}' % ("\U0001f600" * (2 * MIB - 100)).encode()),
        post(path, text({"messages": [{"value": "a" * 100}] * 65_000})),
        post(path, b'{"messages":[' + b",".join([b"{}"] * (VALUES // 2)) + b"]}"),
        post(path, text({f"k{n}": n for n in range(VALUES // 2)})),
        post(path, text({"messages": list(range(VALUES))})),
        post(path, b'{"messages":[{"json":[' + b",".join([b"1"] * VALUES) + b"]}]}"),
        post(path, b"[" * (16 * MIB - 1)),
        post(
            path,
            text({"messages": [{"value": "a" * 9} for _ in range(65_000)]}),
            Idempotency_Key="k",
        ),
    ]


def publish_headers() -> list[bytes]:
    headed = {f"h{n}": "v" for n in range(1_000)}
    raw = dict.fromkeys(headed, b"v")
    return [
        post(
            f"{TOPICS}/in/messages", text({"messages": [{"value": "a", "headers": headed}] * 440})
        ),
        post(f"{TOPICS}/in/messages", packed([b"v"] * 60, 4, headers=[raw] * 60), BLOCKS),
    ]


def publish_bombs() -> list[bytes]:
    path = f"{TOPICS}/in/messages"
    return [*bombs(JSON, path), *bombs(BLOCKS, path), chunked(path, bytes(17 * MIB), 1 << 16)]


def publish_blocks() -> list[bytes]:
    path = f"{TOPICS}/in/messages"
    plain = b"".join(bodies.frames([NewBlock(0, bytes(block.encode([bytes(8 * MIB - 100)])))]))
    return [
        post(path, large(20), BLOCKS),
        post(path, many(2), BLOCKS),
        post(path, plain, BLOCKS),
        post(path, tiny(4_096), BLOCKS),
        post(path, tiny(4_097), BLOCKS),
        post(path + "?expect=nothing", large(1), BLOCKS),
    ]


def commits() -> list[bytes]:
    tokens = [f"0.{n:x}.1.1" for n in range(100_000)]
    moved = [
        {"group": f"g{n}", "topic": "default:in", "partition": 0, "position": "earliest"}
        for n in range(50_000)
    ]
    return [
        commit(large(10), topics=[{"topic": "default:in", "blocks": 10}]),
        commit(large(10), topics=[{"topic": "default:in", "blocks": 10}], token="again"),
        commit(large(1), id="1", topics=[{"topic": "default:in", "blocks": 1}]),
        commit(tiny(4_096), topics=[{"topic": "default:in", "blocks": 4_096}]),
        commit(positions=[{**one, "expected": "latest"} for one in moved]),
        commit(changes=["AAAA"] * 1_000_000),
        commit(settlements=[{"group": "g", "topic": "default:jobs", "tokens": tokens}]),
        commit(
            staged=[
                {
                    "topic": "default:in",
                    "partition": 0,
                    "blocks": 1,
                    "producers": [*range(1, 900_000)],
                }
            ]
        ),
        post(f"{TRANSACTIONS}/new/commit", b"\xff" * MIB, COMMIT),
    ]


def transactions() -> list[bytes]:
    return [
        post(f"{TOPICS}/in/staged?transaction=1", large(20), BLOCKS),
        post(TRANSACTIONS, text({"token": "x" * 60_000})),
        post(TRANSACTIONS, b"{}"),
        request("GET", TRANSACTIONS),
        request("GET", f"{TRANSACTIONS}/1"),
        request("DELETE", f"{TRANSACTIONS}/1"),
        post(f"{TRANSACTIONS}/1/invalidate", b""),
        post(f"{TRANSACTIONS}/prune", text({"before_ms": 1})),
    ]


def fetch() -> list[bytes]:
    made = []
    for topic in ("large", "many"):
        path = f"{TOPICS}/{topic}/messages?{EVERYTHING}"
        made += [request("GET", f"{path}&limit=10000", Accept=media) for media in (JSON, ARROW)]
        made += [
            request("GET", path, Accept=BLOCKS),
            request("GET", f"{path}&isolation=uncommitted&wait_s=0.1", Accept=BLOCKS),
            request("GET", f"{TOPICS}/{topic}/offsets?at=time:1"),
            request("GET", f"{TOPICS}/{topic}/inspect?limit=1000"),
        ]
    return made


def fetch_filtered() -> list[bytes]:
    path = f"{TOPICS}/many/messages?{EVERYTHING}&where="
    return [
        request("GET", path + where, Accept=media)
        for where in ("key%20%5E%3D%207", "key%20%3D%20none")
        for media in (JSON, BLOCKS, ARROW)
    ]


def receive() -> list[bytes]:
    asked = text({"limit": 2_000, "bytes_max": 1 << 30})
    path = f"{TOPICS}/jobs/queues/g/receive"
    return [post(path, asked, Accept=JSON), post(path, asked, Accept=BLOCKS)]


def settle() -> list[bytes]:
    tokens = [f"0.{n:x}.1.1" for n in range(VALUES)]
    made = []
    for verb in ("ack", "nack", "release", "extend", "reject"):
        path = f"{TOPICS}/jobs/queues/g/{verb}"
        made += [
            post(path, text({"tokens": ["0.ffffff.1.ffffffff" + " " * 14] * 440_000})),
            post(path, text({"tokens": tokens[:90_000]})),
            post(path, text({"tokens": ["x" * (16 * MIB - 100)]})),
        ]
    return made


def redrive() -> list[bytes]:
    path = f"{TOPICS}/hurt/queues/g/redrive"
    return [post(path, text({"limit": 1_000})), post(path, text({"limit": 1, "x": [1] * VALUES}))]


def erase() -> list[bytes]:
    path = f"{TOPICS}/gone/erase"
    return [
        *(post(path, text({"key": str(n)})) for n in range(6)),
        post(path, text({"key": "x" * 60_000})),
        post(path, text({"key": "x" * MIB})),
        post(f"{TOPICS}/cut/truncate", text({"before": "latest"})),
    ]


def delayed() -> list[bytes]:
    path = f"{TOPICS}/later/delayed"
    return [
        post(f"{path}?{HOUR}", large(10), BLOCKS),
        post(f"{path}?{HOUR}", tiny(4_096), BLOCKS),
        post(f"{path}?{HOUR}", text({"messages": [{"value": "a" * 100}] * 60_000})),
        *bombs(JSON, f"{path}?{HOUR}"),
        request("GET", f"{path}?limit=1000"),
        request("DELETE", f"{path}/{'0' * 24}"),
    ]


def groups() -> list[bytes]:
    group, positions = f"{TOPICS}/in/groups/g", f"{TOPICS}/in/positions/g"
    polled = text({"session_s": 30, "holding": {str(n): 0 for n in range(4_000)}})
    return [
        *(post(f"{group}/members/m{n}", polled) for n in range(6)),
        post(f"{group}/members/m1", text({"holding": {str(n): n for n in range(100_000)}})),
        request("DELETE", f"{group}/members/m1"),
        request("GET", group),
        request("GET", f"{TOPICS}/in/groups"),
        request("PUT", positions, text({"positions": {str(n): "earliest" for n in range(3_000)}})),
        request("PUT", positions, bytes(16 * MIB)),
        request("GET", positions),
        request("DELETE", positions),
    ]


def cdap_publish() -> list[bytes]:
    large_one = b"\x02" + long(1) + long(8 * MIB - 100) + bytes(8 * MIB - 100) + b"\x00"
    small_ones = b"\x02" + long(1_000_000) + bytes(1_000_000) + b"\x00"
    made = []
    for verb in ("publish", "store"):
        path = f"{CDAP}/cdap/{verb}"
        for body in (large_one, small_ones):
            zipped = gzip.compress(body, 1)
            made += [post(path, body, AVRO), post(path, zipped, AVRO, Content_Encoding="gzip")]
        made += bombs(AVRO, path)
    return made


def cdap_poll() -> list[bytes]:
    everything = long(2) + b"\x01" + long(1) + long(1)  # from the beginning, no limit
    pointers = struct.pack(">" + "q" * 1_000_000, *range(1_000_000))
    lists = b"\x0f\x00\x03\x0a" + struct.pack(">I", 1_000_000) + pointers
    codec = b"\x0a\x00\x01" + bytes(8) + b"\x0a\x00\x02" + bytes(8) + lists + b"\x00"
    snapshot = long(2) + b"\x01" + long(1) + long(0) + long(len(codec)) + codec
    made = [post(f"{CDAP}/many/poll", snapshot, AVRO)]
    for topic in ("many", "large"):
        path = f"{CDAP}/{topic}/poll"
        made += [post(path, everything, AVRO), post(path, everything, AVRO, Accept_Encoding="gzip")]
    return made


def topics() -> list[bytes]:
    properties = text({f"k{n}": "v" for n in range(5_000)})
    return [
        *(request("PUT", f"{TOPICS}/new{n}", b"{}") for n in range(8)),
        request("PUT", f"{TOPICS}/new1/queues/g", b"{}"),
        request("PATCH", f"{TOPICS}/new1/queues/g", text({"lease_s": 1})),
        request("GET", f"{TOPICS}/jobs/queues"),
        request("PATCH", f"{TOPICS}/new1", text({"retention": "1d"})),
        request("PUT", f"{TOPICS}/new2", b"[" * (60 << 10)),
        request("PUT", f"{TOPICS}/new3", bytes(16 * MIB)),
        request("GET", f"{TOPICS}?limit=10000"),
        request("DELETE", f"{TOPICS}/new4"),
        request("PUT", f"{CDAP}/cdap/properties", properties),
        request("GET", f"{CDAP}/cdap"),
        request("GET", CDAP),
    ]


def heads() -> list[bytes]:
    path = f"{TOPICS}/in"
    return [
        request("GET", path, **{f"X{n}": "v" * 60 for n in range(1_000)}),
        request("GET", path, X="v" * 100_000),
        request("GET", f"{path}?{'x' * 20_000}"),
        request("GET", f"{path}/messages?where={'(' * 4_000}"),
        chunked(f"{path}/messages", b" " * (64 << 10), 1),
        request("GET", routes.METRICS),
        request("GET", routes.OPENAPI),
    ]


KINDS: dict[str, Callable[[], list[bytes]]] = {
    made.__name__: made
    for made in (
        publish_json, publish_headers, publish_bombs, publish_blocks, commits, transactions, fetch,
        fetch_filtered, receive, settle, redrive, erase, delayed, groups, cdap_publish, cdap_poll,
        topics, heads,
    )
}  # fmt: skip


# -- their resources -------------------------------------------------------------------------------


def call(service: Service, raw: bytes) -> Answer:
    """The answer to a request, which has to succeed."""
    with Client(service.address, 60) as client:
        client.send(raw)
        answer = client.answer()
    assert answer.status < 300, answer
    return answer


def prepare(service: Service) -> None:
    """Create the resources of the requests."""
    with tms.connect(service.url) as bus:
        for topic in ("in", "large", "many", "jobs", "hurt", "gone", "cut", "later"):
            bus.create_topic(topic, durability="written")
    for topic, body in _contents():
        call(service, post(f"{TOPICS}/{topic}/messages", body, BLOCKS))
    for topic in ("jobs", "hurt"):
        call(service, request("PUT", f"{TOPICS}/{topic}/queues/g", text({"lease_s": 600})))
    call(service, post(f"{TOPICS}/later/delayed?{HOUR}", large(3), BLOCKS))
    call(service, request("PUT", f"{CDAP}/cdap", b"{}"))
    hurt = f"{TOPICS}/hurt/queues/g"
    received = call(service, post(f"{hurt}/receive", text({"limit": 6}))).json
    call(service, post(f"{hurt}/reject", text({"tokens": received["tokens"]})))


def _contents() -> Iterable[tuple[str, bytes]]:
    yield "large", large(10)
    yield "many", many(6)
    yield "jobs", many(3) + large(3)
    yield "hurt", large(3)
    yield "gone", many(1)
