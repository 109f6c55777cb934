"""Every row of the list of bad inputs that concerns the service, named by its number.

A refused request gets a problem document of a stable type, stores nothing, and leaves the
connection usable unless its framing is broken.
"""

import base64
import gzip
import itertools
import json
import random
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.http_kit import Answer, Client, Served, request, serving
from tms import block
from tms.api import bodies, commits, routes
from tms.model.ids import MessageId
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import METADATA_CHARS_MAX, Commit, TopicBlock
from tms.server import idempotency
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import RequestLimits

BODY_MAX = 4 << 20
MESSAGE_MAX = 1_000
FAST = ConnectionLimits(head_timeout_s=2, body_timeout_s=2, write_timeout_s=2)
_topics = itertools.count()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    limits = RequestLimits(body_bytes_max=BODY_MAX, publish_bytes_in_flight_max=16 << 20)
    with serving(limits=limits, connection_limits=FAST) as running:
        yield running


@pytest.fixture
def topic(served: Served) -> str:
    return served.create(f"t{next(_topics)}", partitions=2, message_bytes_max=MESSAGE_MAX)


def stored(client: Client, topic: str) -> int:
    """The number of messages of the topic."""
    answer = client.request("GET", f"{topic}/messages?limit=10000&bytes_max=4000000")
    return len(answer.json["messages"])


def publish(client: Client, topic: str, body: bytes, **more: str) -> Answer:
    return client.request("POST", f"{topic}/messages", body, **more)


def messages(*found: object) -> bytes:
    return json.dumps({"messages": found}).encode()


def refused(client: Client, answer: Answer, status: int, problem: str) -> Answer:
    """Check the answer, and that the connection goes on."""
    assert (answer.status, answer.problem) == (status, problem), answer
    assert client.request("GET", "/livez").status == routes.OK
    return answer


def refused_and_closed(client: Client, status: int, problem: str) -> None:
    answer = client.answer()
    assert (answer.status, answer.problem) == (status, problem), answer
    assert answer.headers["connection"] == "close"
    assert client.is_closed()


# -- rows 1 to 10: HTTP itself -----------------------------------------------------------------


def test_row_01_a_body_over_the_limit_is_refused_before_it_is_read(
    client: Client, topic: str
) -> None:
    head = request("POST", f"{topic}/messages", b"", media=None)
    client.send(head.replace(b"Content-Length: 0", b"Content-Length: %d" % (1 << 40)))
    # without Content-Type it would be 415; with it, the length decides before a byte is read
    refused_and_closed(client, 415, "unsupported-media-type")


def test_row_01_the_length_alone_decides(client: Client, topic: str) -> None:
    head = request("POST", f"{topic}/messages", b"")
    client.send(head.replace(b"Content-Length: 0", b"Content-Length: %d" % (1 << 40)))
    refused_and_closed(client, 413, "too-large")


def test_row_01_a_little_too_much_leaves_the_connection_usable(client: Client, topic: str) -> None:
    answer = client.request("PATCH", topic, bytes(100 << 10))  # settings are small
    refused(client, answer, 413, "too-large")


def test_row_02_a_chunked_body_is_cut_at_the_limit(client: Client, topic: str) -> None:
    head = request("POST", f"{topic}/messages", media=None)
    client.send(
        head.replace(
            b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
        )
    )
    piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    for _ in range(BODY_MAX // (1 << 16) + 1):
        client.send(piece)
    refused_and_closed(client, 413, "too-large")


def test_row_03_a_body_that_stops_is_given_up(client: Client, topic: str) -> None:
    started = time.monotonic()
    client.send(request("POST", f"{topic}/messages", bytes(100))[:-50])
    refused_and_closed(client, 408, "request-timeout")
    assert time.monotonic() - started <= FAST.body_timeout_s + 1


def test_row_03_and_09_the_times_of_the_defaults_are_within_ten_seconds() -> None:
    limits = ConnectionLimits()
    assert limits.head_timeout_s <= 10
    assert limits.body_timeout_s <= 10


START = b"POST /v2/namespaces/default/topics/a/messages HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", id="row_04_cl_te"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", id="row_04_te_cl"),
        pytest.param(b"Content-Length: 4\r\nContent-Length: 5\r\n", id="row_05_two_lengths"),
        pytest.param(b"Content-Length: 4, 5\r\n", id="row_05_list"),
        pytest.param(b"Content-Length: +4\r\n", id="row_05_sign"),
        pytest.param(b"A: b\r\n c\r\n", id="row_06_obs_fold"),
        pytest.param(b"A: b\nC: d\r\n", id="row_06_bare_lf"),
        pytest.param(b"A: b\rC: d\r\n", id="row_06_bare_cr"),
        pytest.param(b"A: b\0c\r\n", id="row_06_nul"),
        pytest.param(b"A\0: b\r\n", id="row_06_nul_in_name"),
        pytest.param(b"A : b\r\n", id="row_06_space_before_colon"),
    ],
)
def test_rows_04_to_06_ambiguous_framing_is_refused(client: Client, head: bytes) -> None:
    client.send(START + head + b"\r\n")
    refused_and_closed(client, 400, "malformed")


@pytest.mark.parametrize(
    "name", ["Host", "content-type", "Content-Encoding", "Idempotency-Key", "IDEMPOTENCY-KEY"]
)
def test_a_header_that_comes_once_is_refused_twice(client: Client, name: str) -> None:
    client.send(START + f"{name}: a\r\n".encode() * 2 + b"\r\n")
    refused_and_closed(client, 400, "malformed")


def test_a_header_that_may_come_again_is_joined(client: Client) -> None:
    start = b"GET /v2/namespaces/default/topics HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n"
    client.send(start + b"\r\n")
    assert client.answer().problem == "not-acceptable"
    client.send(start + b"Accept: application/json\r\n\r\n")
    assert client.answer().status == routes.OK


def test_row_07_too_many_headers(client: Client) -> None:
    client.send(START + b"".join(b"A%d: b\r\n" % n for n in range(101)) + b"\r\n")
    refused_and_closed(client, 431, "headers-too-large")


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "without_end"])
def test_row_07_too_large_headers(client: Client, end: bytes) -> None:
    client.send(START + b"A: " + b"b" * (80 << 10) + end)
    refused_and_closed(client, 431, "headers-too-large")


def test_row_08_a_url_over_8_kib(client: Client) -> None:
    client.send(request("GET", "/" + "a" * (8 << 10)))
    refused_and_closed(client, 414, "uri-too-long")


def test_row_09_slow_headers_are_cut_off_and_harm_nobody(served: Served) -> None:
    slow = [served.connect() for _ in range(200)]
    started = time.monotonic()
    for number, connection in enumerate(slow):
        connection.send(b"GET / HTTP/1.1\r\nA: "[: number % 18])
    with served.connect() as quick:
        for _ in range(50):
            assert quick.request("GET", "/livez").status == routes.OK
    while time.monotonic() - started < FAST.head_timeout_s - 1:
        for connection in slow[:20]:
            connection.send(b"x")
        time.sleep(0.2)
    for number, connection in enumerate(slow):
        if number >= 20 and number % 18:
            assert connection.answer().problem == "request-timeout"
    assert time.monotonic() - started <= FAST.head_timeout_s + 1.5


@pytest.mark.parametrize(
    ("method", "target", "status", "problem"),
    [
        ("TRACE", "/", 405, "method-not-allowed"),
        ("TRACE", "/v2/namespaces/default/topics/a/messages", 405, "method-not-allowed"),
        ("PUT", "/v2/namespaces/default/topics/a/messages", 405, "method-not-allowed"),
        ("POST", "/v2/namespaces/default/topics/a", 405, "method-not-allowed"),
    ],
)
def test_row_10_methods_that_a_path_has_not(
    client: Client, method: str, target: str, status: int, problem: str
) -> None:
    answer = refused(client, client.request(method, target), status, problem)
    assert answer.headers["allow"]


def test_row_10_a_method_that_http_has_not(client: Client) -> None:
    client.send(request("FOO", "/"))
    refused_and_closed(client, 501, "not-implemented")


# -- rows 11 to 18: representations ------------------------------------------------------------


@pytest.mark.parametrize(
    "media",
    [None, "application/json; charset=utf-16", "text/plain", "application/xml", "json", ";"],
    ids=str,
)
def test_rows_11_and_12_bodies_of_unknown_type(
    client: Client, topic: str, media: str | None
) -> None:
    answer = publish(client, topic, messages({"value": "a"}), media=media)
    refused(client, answer, 415, "unsupported-media-type")


@pytest.mark.parametrize("accept", ["text/html", "image/*", "application/json;q=0", "nonsense"])
def test_row_13_nothing_acceptable(client: Client, topic: str, accept: str) -> None:
    for target in (f"{topic}/messages", topic):
        answer = client.request("GET", target, Accept=accept)
        refused(client, answer, 406, "not-acceptable")


def bomb(coding: str, size: int) -> bytes:
    """`size` zero bytes, compressed."""
    zeros, count = bytes(1 << 20), size >> 20
    if coding == "gzip":
        machine = zlib.compressobj(9, zlib.DEFLATED, -15)
        piece = machine.compress(zeros) + machine.flush(zlib.Z_FULL_FLUSH)  # stands alone
        crc = 0
        for _ in range(count):
            crc = zlib.crc32(zeros, crc)
        header = gzip.compress(b"", mtime=0)[:10]
        return b"".join([header, piece * count, machine.flush(), struct.pack("<II", crc, size)])
    writer = zstandard.ZstdCompressor(level=1).compressobj()  # zeros are as small at any level
    pieces = [writer.compress(zeros) for _ in range(count)]
    return b"".join((*pieces, writer.flush()))


@pytest.mark.parametrize(("coding", "size"), [("gzip", 256 << 20), ("zstd", 1 << 30)])
def test_rows_14_and_15_bombs_are_refused_within_memory(
    served: Served, topic: str, coding: str, size: int
) -> None:
    body = bomb(coding, size)
    client = served.connect()
    before = peak_bytes()
    answer = publish(client, topic, body, Content_Encoding=coding)
    refused(client, answer, 413, "decompressed-too-large")
    assert peak_bytes() - before <= 2 * BODY_MAX + len(body) + (2 << 20)


def peak_bytes() -> int:
    """The peak of this process's memory, which this resets."""
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def test_row_15_a_zstd_window_over_8_mib_is_refused(client: Client, topic: str) -> None:
    settings = zstandard.ZstdCompressionParameters(window_log=24)
    writer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    body = writer.compress(random.Random(1).randbytes(1 << 16)) + writer.flush()
    answer = publish(client, topic, body, Content_Encoding="zstd")
    refused(client, answer, 400, "bad-encoding")


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip, zstd", "deflate", "br", "nonsense"])
def test_row_16_other_codings(client: Client, topic: str, coding: str) -> None:
    answer = publish(client, topic, gzip.compress(gzip.compress(b"{}")), Content_Encoding=coding)
    refused(client, answer, 415, "unsupported-media-type")


def test_row_16_gzip_inside_gzip(client: Client, topic: str) -> None:
    answer = publish(client, topic, gzip.compress(gzip.compress(b"{}")), Content_Encoding="gzip")
    refused(client, answer, 415, "unsupported-media-type")


PACKED = messages({"value": "a" * 500})
GZIPPED = gzip.compress(PACKED, mtime=0)  # a time would be part of the tests' names
ZSTD = zstandard.ZstdCompressor().compress(PACKED)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", GZIPPED[:-1]),
        ("gzip", GZIPPED[:20]),
        ("gzip", GZIPPED[:-6] + b"\0" + GZIPPED[-5:]),
        ("gzip", GZIPPED + b"x"),
        ("gzip", PACKED),
        ("gzip", b""),
        ("zstd", ZSTD[:-1]),
        ("zstd", ZSTD[:9]),
        ("zstd", ZSTD + b"x"),
        ("zstd", PACKED),
        ("zstd", b""),
    ],
)
def test_row_17_damaged_encodings(client: Client, topic: str, coding: str, body: bytes) -> None:
    answer = publish(client, topic, body, Content_Encoding=coding)
    refused(client, answer, 400, "bad-encoding")
    assert stored(client, topic) == 0


@pytest.mark.parametrize(
    ("coding", "body"), [("gzip", GZIPPED), ("zstd", ZSTD), ("identity", PACKED)]
)
def test_row_17_sound_encodings_are_read(
    client: Client, topic: str, coding: str, body: bytes
) -> None:
    assert publish(client, topic, body, Content_Encoding=coding).status == routes.OK
    assert stored(client, topic) == 1


def test_row_18_an_empty_body(client: Client, topic: str) -> None:
    refused(client, publish(client, topic, b""), 400, "bad-json")
    refused(client, publish(client, topic, b"", media=routes.BLOCKS), 400, "malformed")
    refused(client, client.request("PUT", topic, b""), 400, "bad-json")
    refused(client, client.request("POST", f"{topic}/truncate", b""), 400, "bad-json")


# -- rows 19 to 25: JSON -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 100_000, id="row_19_depth"),
        pytest.param(b'{"messages":[{"json":' + b"[" * 100_000, id="row_19_depth_inside"),
        pytest.param(b'{"messages":[{"value":"a","value":"b"}]}', id="row_20_duplicate"),
        pytest.param(b'{"messages":[{"json":{"a":1,"a":1}}]}', id="row_20_duplicate_inside"),
        pytest.param(b'{"messages":[{"json":NaN}]}', id="row_21_nan"),
        pytest.param(b'{"messages":[{"json":Infinity}]}', id="row_21_infinity"),
        pytest.param(b'{"messages":[{"json":1e999}]}', id="row_21_1e999"),
        pytest.param(b'{"messages":[{"json":' + b"9" * (1 << 20) + b"}]}", id="row_23_digits"),
        pytest.param(b'\xef\xbb\xbf{"messages":[{"value":"a"}]}', id="row_24_bom"),
        pytest.param(b'{"messages":[{"value":"\\ud800"}]}', id="row_24_surrogate"),
        pytest.param(b'{"messages":[{"json":["\\ud800"]}]}', id="row_24_surrogate_inside"),
        pytest.param(b'{"messages":[{"value":"\xc0\x80"}]}', id="row_24_overlong"),
        pytest.param('{"messages":[{"value":"a"}]}'.encode("utf-16"), id="row_24_utf_16"),
    ],
)
def test_rows_19_to_24_json_that_is_not_strict(client: Client, topic: str, body: bytes) -> None:
    started = time.process_time()
    answer = publish(client, topic, body)
    assert time.process_time() - started < 3  # 50 ms
    refused(client, answer, 400, "bad-json")
    assert stored(client, topic) == 0


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, -1, 10**30])
@pytest.mark.parametrize("kind", ["offset", "time"])
def test_row_22_numbers_beyond_64_bits(client: Client, topic: str, kind: str, number: int) -> None:
    answer = client.request("GET", f"{topic}/messages?start={kind}:{number}")
    refused(client, answer, 422, "invalid")
    refused(
        client,
        publish(client, topic, messages({"value": "", "partition": 2**63})),
        404,
        "partition-not-found",
    )


def test_row_25_nul_in_names_is_refused_and_in_payloads_kept(client: Client, topic: str) -> None:
    answer = client.request("PUT", "/v2/namespaces/default/topics/a%00b", b"{}")
    refused(client, answer, 422, "invalid")
    answer = publish(client, topic, messages({"value": "a\0b", "key": "k\0"}))
    assert answer.status == routes.OK
    found = client.request("GET", f"{topic}/messages").json["messages"][0]
    assert (found["value"], found["key"]) == ("a\0b", "k\0")


# -- rows 26 to 36: topics ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("..", 400, id="row_26_dots"),
        pytest.param(".", 400, id="row_26_dot"),
        pytest.param("../../etc/passwd", 404, id="row_26_path"),
        pytest.param("%2e%2e%2f", 400, id="row_26_encoded"),
        pytest.param("%2e%2e%2fetc%2fpasswd", 400, id="row_26_encoded_path"),
        pytest.param("..%5c", 400, id="row_26_backslash"),
        pytest.param("%252e", 400, id="row_26_twice"),
        pytest.param("a%2Fb", 422, id="row_27_slash"),
        pytest.param("", 422, id="row_28_empty"),
        pytest.param("a" * 250, 422, id="row_28_250"),
        pytest.param("-a", 422, id="row_28_dash"),
        pytest.param("a%20b", 422, id="row_28_space"),
        pytest.param(".a", 422, id="row_28_dot"),
        pytest.param("...", 422, id="row_28_dots"),
        pytest.param("%F0%9F%98%80", 422, id="row_28_emoji"),
        pytest.param("%E2%80%AEa", 422, id="row_28_rtl"),
        pytest.param("%D0%B0", 422, id="row_28_homoglyph"),
        pytest.param("%ff%fe", 400, id="row_29_no_utf_8"),
    ],
)
def test_rows_26_to_29_names(client: Client, name: str, status: int) -> None:
    kinds = {400: "malformed", 404: "not-found", 422: "invalid"}
    target = f"/v2/namespaces/default/topics/{name}"
    refused(client, client.request("PUT", target, b"{}"), status, kinds[status])
    answer = client.request("GET", f"{target}/messages")
    refused(client, answer, status, kinds[status])


def test_row_29_raw_bytes_in_a_path_are_no_http(client: Client) -> None:
    client.send(b"GET /v2/namespaces/default/topics/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n")
    refused_and_closed(client, 400, "malformed")


def test_row_30_names_of_devices_and_case_are_just_names(served: Served, client: Client) -> None:
    for name in ("con", "nul", "Con"):
        path = served.create(name)
        assert publish(client, path, messages({"value": name})).status == routes.OK
    for name in ("con", "nul", "Con"):
        answer = client.request("GET", f"/v2/namespaces/default/topics/{name}/messages")
        assert [found["value"] for found in answer.json["messages"]] == [name]


def test_row_32_the_namespace_system_is_closed_to_callers(client: Client) -> None:
    path = "/v2/namespaces/system/topics/a"
    for method, target, body in (
        ("PUT", path, b"{}"),
        ("PATCH", path, b'{"partitions":2}'),
        ("DELETE", path, None),
        ("POST", f"{path}/truncate", b"{}"),
        ("POST", f"{path}/messages", messages({"value": "a"})),
    ):
        refused(client, client.request(method, target, body), 403, "forbidden")


def test_row_33_a_topic_that_exists(client: Client, topic: str) -> None:
    same = {"partitions": 2, "message_bytes_max": MESSAGE_MAX}
    assert client.request("PUT", topic, json.dumps(same).encode()).status == routes.OK
    refused(client, client.request("PUT", topic, b'{"partitions":3}'), 409, "topic-exists")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partitions": 0}, id="row_34_0"),
        pytest.param({"partitions": -1}, id="row_34_negative"),
        pytest.param({"partitions": 10**6}, id="row_34_million"),
        pytest.param({"partitions": 2**64}, id="row_34_large"),
        pytest.param({"partitions": "2"}, id="row_34_text"),
        pytest.param({"partitions": True}, id="row_34_true"),
        pytest.param({"retention": 0}, id="row_36_0"),
        pytest.param({"retention": -1}, id="row_36_negative"),
        pytest.param({"retention": "1ms"}, id="row_36_1_ms"),
        pytest.param({"retention": 10**15}, id="row_36_long"),
        pytest.param({"retention": "1 fortnight"}, id="row_36_fortnight"),
        pytest.param({"retention": "9" * 5_000}, id="row_36_digits"),
        pytest.param({"durability": "eventually"}, id="durability"),
        pytest.param({"colour": "red"}, id="unknown"),
    ],
)
def test_rows_34_and_36_settings(client: Client, topic: str, settings: dict[str, object]) -> None:
    body = json.dumps(settings).encode()
    new = f"/v2/namespaces/default/topics/new{next(_topics)}"
    refused(client, client.request("PUT", new, body), 422, "invalid")
    refused(client, client.request("GET", new), 404, "topic-not-found")
    refused(client, client.request("PATCH", topic, body), 422, "invalid")


def test_row_35_fewer_partitions(client: Client, topic: str) -> None:
    answer = client.request("PATCH", topic, b'{"partitions":1}')
    refused(client, answer, 409, "fewer-partitions")


# -- rows 37 to 40: positions ------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    ["ab", "a" * 39, "g" * 40, "a" * 42, "ffffffffffffffff" + "0" * 24, "0x" + "0" * 38, "%C3%A9"],
)
@pytest.mark.parametrize("kind", ["", "id:", "after:", "0:after:"])
def test_row_37_malformed_message_ids(client: Client, topic: str, kind: str, id: str) -> None:
    answer = client.request("GET", f"{topic}/messages?start={kind}{id}")
    refused(client, answer, 400, "bad-message-id")


def test_row_37_an_id_of_the_future_finds_nothing(client: Client, topic: str) -> None:
    publish(client, topic, messages({"value": "a"}))
    future = MessageId(200_000_000_000_000, 0)
    answer = client.request("GET", f"{topic}/messages?start=after:{future}")
    assert (answer.status, answer.json["messages"]) == (routes.OK, [])


def test_row_38_beyond_the_end_and_before_the_floor(client: Client, topic: str) -> None:
    publish(client, topic, messages(*({"value": str(n), "partition": 0} for n in range(3))))
    answer = client.request("GET", f"{topic}/messages?start=0:offset:3")
    assert (answer.status, answer.json["messages"]) == (routes.OK, [])
    client.request("POST", f"{topic}/truncate", b"{}")
    answer = client.request("GET", f"{topic}/messages?start=0:offset:1")
    refused(client, answer, 410, "offset-out-of-range")
    assert answer.json["details"] == {"earliest": 3, "end": 3}


@pytest.mark.parametrize("time_ms", ["-1", "253402300800000", "1700000000000000", "x", ""])
def test_row_39_times(client: Client, topic: str, time_ms: str) -> None:
    answer = client.request("GET", f"{topic}/messages?start=time:{time_ms}")
    refused(client, answer, 422, "invalid")


@pytest.mark.parametrize("time_ms", ["-1", "253402300800000", "1700000000000000", "x", ""])
def test_row_39_times_to_truncate_before(client: Client, topic: str, time_ms: str) -> None:
    publish(client, topic, messages({"value": "a"}))
    body = json.dumps({"before": f"time:{time_ms}"}).encode()
    refused(client, client.request("POST", f"{topic}/truncate", body), 422, "invalid")
    assert stored(client, topic) == 1


@pytest.mark.parametrize("value", ["0", "-1", "1000000000", "abc", "", "1e3", "%D9%A1"])
def test_row_40_limits(client: Client, topic: str, value: str) -> None:
    for target in (f"{topic}/messages", "/v2/namespaces/default/topics", f"{topic}/inspect"):
        answer = client.request("GET", f"{target}?limit={value}")
        refused(client, answer, 422, "invalid")


@pytest.mark.parametrize("query", ["form=latest", "limit=1&limit=2", "wait_s=-1", "bytes_max=0"])
def test_row_40_other_parameters(client: Client, topic: str, query: str) -> None:
    refused(client, client.request("GET", f"{topic}/messages?{query}"), 422, "invalid")


# -- rows 41 to 53: messages -------------------------------------------------------------------


def test_row_41_no_messages(client: Client, topic: str) -> None:
    refused(client, publish(client, topic, messages()), 422, "invalid")


def test_row_42_too_many_messages(served: Served, client: Client, topic: str) -> None:
    body = b'{"messages":[' + b'{"value":""},' * 65_536 + b'{"value":""}]}'
    refused(client, publish(client, topic, body), 413, "too-large")
    body = b'{"messages":[' + b'{"value":""},' * 300_000 + b'{"value":""}]}'
    refused(client, publish(client, topic, body), 413, "too-large")
    assert stored(client, topic) == 0


def test_row_43_one_byte_over_the_largest_message(client: Client, topic: str) -> None:
    over = publish(client, topic, messages({"value": ""}, {"value": "a" * (MESSAGE_MAX + 1)}))
    refused(client, over, 413, "too-large")
    assert over.json["details"] == {"index": 1}
    framed = b"".join(bodies.frames([NewBlock(0, block.encode([b"a" * (MESSAGE_MAX + 1)]))]))
    refused(client, publish(client, topic, framed, media=routes.BLOCKS), 413, "too-large")
    assert publish(client, topic, messages({"value": "a" * MESSAGE_MAX})).status == routes.OK
    assert stored(client, topic) == 1


def test_row_44_null_and_empty(client: Client, topic: str) -> None:
    body = messages({"value": None, "partition": 0}, {"value": "", "partition": 0})
    assert publish(client, topic, body).status == routes.OK
    found = client.request("GET", f"{topic}/messages").json["messages"]
    assert [each["value"] for each in found] == [None, ""]


@pytest.mark.parametrize(
    "headers",
    [{str(n): "" for n in range(10_000)}, {"": "a"}, {"a": "b" * (1 << 20)}],
    ids=["many", "empty_name", "large"],
)
def test_row_45_headers(client: Client, topic: str, headers: dict[str, str]) -> None:
    answer = publish(client, topic, messages({"value": ""}, {"value": "", "headers": headers}))
    refused(client, answer, 422, "invalid")
    assert answer.json["details"]["index"] == 1
    assert stored(client, topic) == 0


def test_row_45_a_large_header_is_refused_in_a_block_too(client: Client, topic: str) -> None:
    small = block.encode([b"", b""], headers=[None, {"a": b"b" * 300}])
    largest = block.packing.HEADER_VALUE_BYTES_MAX
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block.packing, "HEADER_VALUE_BYTES_MAX", 1 << 20)
        large = block.encode([b"", b""], headers=[None, {"a": b"b" * (largest + 1)}])
    answer = publish(client, topic, framed(large), media=routes.BLOCKS)
    assert refused(client, answer, 422, "invalid").json["details"]["index"] == 1
    assert publish(client, topic, framed(small), media=routes.BLOCKS).status == routes.OK


@pytest.mark.parametrize("text", ["a", "YQ=", "YQ", "YQ==YQ==", "-_8=", "Y Q==", "é", "YQ==="])
def test_row_46_base64(client: Client, topic: str, text: str) -> None:
    body = messages({"value": base64.b64encode(b"a").decode(), "encoding": "base64"})
    assert publish(client, topic, body).status == routes.OK
    answer = publish(client, topic, messages({"value": text, "encoding": "base64"}))
    refused(client, answer, 400, "bad-encoding")
    assert stored(client, topic) == 1


def framed(made: bytes | bytearray) -> bytes:
    return b"".join(bodies.frames([NewBlock(0, made)]))


def test_row_51_a_bad_checksum(client: Client, topic: str) -> None:
    made = block.encode([b"abc"])
    made[-1] ^= 1
    refused(client, publish(client, topic, framed(made), media=routes.BLOCKS), 400, "crc-mismatch")
    assert stored(client, topic) == 0


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(0, b"\xff\xff\xff\xff", id="length"),
        pytest.param(bodies.PREFIX_BYTES, b"XXXX", id="magic"),
        pytest.param(bodies.PREFIX_BYTES + 4, b"\xff", id="version"),
        pytest.param(bodies.PREFIX_BYTES + 5, b"\x01", id="flags"),
        pytest.param(bodies.PREFIX_BYTES + 8, struct.pack(">I", 2**32 - 1), id="count"),
        pytest.param(bodies.PREFIX_BYTES + 44, b"\x01", id="reserved"),
    ],
)
def test_row_52_broken_frames(client: Client, topic: str, at: int, value: bytes) -> None:
    body = bytearray(framed(block.encode([b"abc"])))
    body[at : at + len(value)] = value
    answer = publish(client, topic, bytes(body), media=routes.BLOCKS)
    refused(client, answer, 400, "bad-block")
    assert stored(client, topic) == 0


def test_row_52_a_partition_that_is_not_there(client: Client, topic: str) -> None:
    body = b"".join(bodies.frames([NewBlock(2**32 - 1, block.encode([b"abc"]))]))
    answer = publish(client, topic, body, media=routes.BLOCKS)
    refused(client, answer, 404, "partition-not-found")


def test_row_53_one_bad_message_and_nothing_is_stored(client: Client, topic: str) -> None:
    found: list[object] = [{"value": str(n)} for n in range(10)]
    found[7] = {"value": 7}
    answer = publish(client, topic, messages(*found))
    refused(client, answer, 422, "invalid")
    assert answer.json["details"] == {"index": 7}
    assert stored(client, topic) == 0


def test_row_57_a_gap_and_a_reuse_of_a_producers_sequence(client: Client, topic: str) -> None:
    def send(sequence: int, value: bytes) -> Answer:
        made = block.encode([value], producer_id=5, producer_sequence=sequence)
        return publish(client, topic, framed(made), media=routes.BLOCKS)

    assert send(0, b"a").status == routes.OK
    refused(client, send(2, b"c"), 409, "out-of-order-sequence")
    refused(client, send(0, b"other"), 409, "sequence-reused")
    again = send(0, b"a").json["appended"][0]
    assert (again["duplicate"], again["base_offset"]) == (True, 0)
    assert stored(client, topic) == 1


def test_row_57_a_gap_a_reuse_and_a_late_epoch_of_sequences_that_count_messages(
    client: Client, topic: str
) -> None:
    def send(sequence: int, *values: bytes, epoch: int = 1) -> Answer:
        made = block.encode(values)
        block.count_messages(made, 5, epoch, sequence)
        return publish(client, topic, framed(made), media=routes.BLOCKS)

    assert send(7, b"a", b"b").status == routes.OK
    refused(client, send(10, b"d"), 409, "out-of-order-sequence")
    refused(client, send(8, b"b"), 409, "sequence-reused")
    late = send(9, b"c", epoch=0)
    refused(client, late, 409, "stale-epoch")
    assert late.json["details"] == {"newest": 1}
    again = send(7, b"A", b"B").json["appended"][0]
    assert (again["duplicate"], again["base_offset"]) == (True, 0)
    made = block.encode([b"c"], producer_id=5 << 16, producer_sequence=2**31)
    made[block.FLAGS_AT] = block.Flags.COUNTS_MESSAGES
    wrong = publish(client, topic, framed(made), media=routes.BLOCKS)
    refused(client, wrong, 400, "bad-block")
    assert stored(client, topic) == 2


def commit(client: Client, id: object, topic: str = "", value: bytes = b"v") -> Answer:
    blocks = (TopicBlock(TopicName.parse(topic), NewBlock(0, block.encode([value]))),)
    body = b"".join(commits.encode_commit(Commit(blocks=blocks if topic else ())))
    return client.request("POST", f"/v2/transactions/{id}/commit", body, media=routes.COMMIT)


def begin(client: Client) -> int:
    id: int = client.request("POST", "/v2/transactions", b"{}").json["transaction_id"]
    return id


def test_row_55_commits_of_transactions_that_are_not_open(client: Client, topic: str) -> None:
    name = topic.rpartition("/")[2]
    for unknown in (77, "x", "-1", "9" * 30):
        refused(client, commit(client, unknown, name), 404, "transaction-not-found")
    id = begin(client)
    first, again = commit(client, id, name), commit(client, id, name)
    assert first.status == again.status == routes.OK and first.json == again.json
    aborted = begin(client)
    assert client.request("DELETE", f"/v2/transactions/{aborted}").json["outcome"] == "aborted"
    refused(client, commit(client, aborted, name), 409, "transaction-ended")
    refused(client, client.request("DELETE", f"/v2/transactions/{id}"), 409, "transaction-ended")
    assert stored(client, topic) == 1


@pytest.mark.parametrize("timeout", [0, -5, 3_601, "x", 1e300])
def test_a_time_out_of_a_transaction_has_bounds(client: Client, timeout: object) -> None:
    body = json.dumps({"timeout_s": timeout}).encode()
    answer = client.request("POST", "/v2/transactions", body)
    assert answer.status in (400, 422), answer
    assert client.request("GET", "/v2/transactions").status == routes.OK


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff{}",
        b"\0\0\0\x02[]",
        b"\0\0\0\x02{}rest",
        b'\0\0\0\x0a{"x": 1}  ',
        b'\0\0\0\x27{"topics": [{"topic":"a","blocks":-1}]}',
        b'\0\0\0\x26{"topics": [{"topic":"a","blocks":9}]}',
        b'\0\0\0\x11{"changes":["?"]}',
        b'\0\0\0\x16{"durability":"maybe"}',
    ],
)
def test_row_52_broken_commits(client: Client, topic: str, body: bytes) -> None:
    answer = client.request("POST", "/v2/transactions/new/commit", body, media=routes.COMMIT)
    assert answer.status in (400, 422) and answer.problem, answer
    assert client.request("GET", "/v2/transactions").json == {"transactions": []}


def test_row_32_a_transaction_cannot_write_to_the_namespace_system(client: Client) -> None:
    answer = commit(client, "new", "system:_transactions")
    refused(client, answer, 403, "forbidden")


def test_row_40_an_isolation_that_is_none(client: Client, topic: str) -> None:
    for isolation in ("", "snapshot", "serializable"):
        answer = client.request("GET", f"{topic}/messages?isolation={isolation}")
        refused(client, answer, 422, "invalid")


def test_row_60_positions_that_are_none(client: Client, topic: str) -> None:
    group = f"{topic}/positions/g"
    for body in (b'{"positions":{"x":"earliest"}}', b'{"positions":{"0":"nowhere"}}', b"{}"):
        assert client.request("PUT", group, body).status in (400, 422)
    moved = b'{"positions":{"0":"offset:4"}}'
    assert client.request("PUT", group, moved).status == routes.OK
    stale = b'{"positions":{"0":"offset:2"},"expected":{"0":"offset:3"}}'
    refused(client, client.request("PUT", group, stale), 409, "conflict")
    assert client.request("GET", group).json == {"positions": {"0": "offset:4"}}


def test_row_60_metadata_that_are_none(client: Client, topic: str) -> None:
    group = f"{topic}/positions/g"

    def put(**more: object) -> Answer:
        body = {"positions": {"0": {"position": "offset:4"} | more}}
        return client.request("PUT", group, json.dumps(body).encode())

    long = "x" * METADATA_CHARS_MAX
    assert put(metadata=long, leader_epoch=2**31 - 1).json == {"positions": {"0": "offset:4"}}
    for wrong in (
        {"metadata": long + "x"},
        {"metadata": 5},
        {"metadata": None},
        {"metadata": "\ud800"},
        {"position": "nowhere"},
        {"leader_epoch": -2},
        {"leader_epoch": 2**31},
        {"leader_epoch": "5"},
        {"epoch": 5},
    ):
        assert put(**wrong).status in (400, 422), wrong
    one = client.request("GET", f"{topic}/groups/g").json["partitions"][0]
    assert (one["position"], one["metadata"], one["leader_epoch"]) == (
        "offset:4",
        long,
        2**31 - 1,
    )
    # Clients of earlier releases read no other field here.
    assert client.request("GET", group).json == {"positions": {"0": "offset:4"}}


def test_row_60_metadata_of_all_partitions_fit_into_a_request(
    client: Client, served: Served
) -> None:
    path = served.create(f"t{next(_topics)}", partitions=64)
    at = {"position": "offset:1", "metadata": "x" * METADATA_CHARS_MAX}
    body = json.dumps({"positions": {str(number): at for number in range(64)}})
    assert client.request("PUT", f"{path}/positions/g", body.encode()).status == routes.OK


def test_row_60_partitions_that_are_none(client: Client, topic: str) -> None:
    group = f"{topic}/positions/g"
    moved = b'{"positions":{"0":"offset:4","1":"offset:5"}}'
    assert client.request("PUT", group, moved).status == routes.OK
    for wrong in ("x", "0,", "-1", "0,65536", "0;1", "1.0"):
        refused(client, client.request("DELETE", f"{group}?partitions={wrong}"), 422, "invalid")
    assert client.request("DELETE", f"{group}?partitions=0,7").status == routes.NO_CONTENT
    assert client.request("GET", group).json == {"positions": {"1": "offset:5"}}


def test_row_58_the_same_key_and_body_are_stored_once(client: Client, topic: str) -> None:
    body = messages({"value": "a"}, {"value": "b", "partition": 1}, {"value": "c", "key": "k"})
    first, again = (publish(client, topic, body, Idempotency_Key="one") for _ in range(2))
    assert first.status == again.status == routes.OK
    assert first.json == again.json
    assert stored(client, topic) == 3
    assert publish(client, topic, body, Idempotency_Key="two").status == routes.OK
    assert stored(client, topic) == 6


def test_row_58_the_same_key_with_another_body_is_refused(client: Client, topic: str) -> None:
    publish(client, topic, messages({"value": "a", "partition": 0}), Idempotency_Key="one")
    other = messages({"value": "a", "partition": 1})
    answer = publish(client, topic, other, Idempotency_Key="one")
    refused(client, answer, 422, "idempotency-key-reused")
    assert stored(client, topic) == 1


def test_row_58_the_log_itself_remembers_a_key(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "KEYS_REMEMBERED", 1)  # as after a restart
    body, other = messages({"value": "a", "key": "k"}), messages({"value": "b", "key": "k"})
    first = publish(client, topic, body, Idempotency_Key="one")
    for key in ("two", "one", "two"):
        again = publish(client, topic, body, Idempotency_Key=key)
        assert (again.json == first.json) == (key == "one")
    refused(
        client,
        publish(client, topic, other, Idempotency_Key="one"),
        422,
        "idempotency-key-reused",
    )
    assert stored(client, topic) == 2


def test_row_58_a_refused_publish_may_come_corrected(client: Client, topic: str) -> None:
    wrong, right = messages({"value": "a", "partition": 9}), messages({"value": "a"})
    answer = publish(client, topic, wrong, Idempotency_Key="one")
    refused(client, answer, 404, "partition-not-found")
    assert publish(client, topic, right, Idempotency_Key="one").status == routes.OK


@pytest.mark.parametrize("key", ["", "a" * 256, "\xe9", "a\tb"])
def test_row_58_keys_that_are_none(client: Client, topic: str, key: str) -> None:
    answer = publish(client, topic, messages({"value": "a"}), Idempotency_Key=key)
    refused(client, answer, 422, "invalid")
    made = block.encode([b"a"])
    answer = publish(client, topic, framed(made), media=routes.BLOCKS, Idempotency_Key="one")
    refused(client, answer, 422, "invalid")
    assert stored(client, topic) == 0


def test_row_68_what_was_typed_comes_back_escaped(client: Client, topic: str) -> None:
    evil = "\r\nSet-Cookie: a=b\x1b[31m<script>=cmd()"
    answer = client.request("GET", "/v2/namespaces/default/topics/" + "%0d%0aA:%20b%1b%5b31m")
    refused(client, answer, 422, "invalid")
    assert not {b"\r", b"\n", b"\x1b"} & {bytes([each]) for each in answer.body}
    publish(client, topic, messages({"value": evil, "key": evil}))
    shown = client.request("GET", f"{topic}/messages")
    assert b"\x1b" not in shown.body
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert shown.json["messages"][0]["value"] == evil
