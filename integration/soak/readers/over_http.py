"""Readers that speak HTTP themselves: fetches as JSON and Arrow, CDAP's poll."""

import base64
import json
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

import pyarrow.ipc

from integration.soak.content import name_of, value_digest
from integration.soak.readers.writing import row

TIMEOUT_S = 60
Row = list[object]


def fetch_json(url: str, topic: str, **query: Any) -> Iterator[Row]:
    """Fetch as JSON, page by page, until a page is empty and its position does not move."""
    for body, _ in _pages(url, topic, "application/json", query):
        for one in json.loads(body)["messages"]:
            decode = base64.b64decode if one["encoding"] == "base64" else str.encode
            key, value = one["key"], one["value"]
            yield row(
                one["partition"],
                one["offset"],
                one["id"],
                None if key is None else decode(key),
                None if value is None else decode(value),
                {name: decode(cell) for name, cell in one["headers"].items()},
            )


def fetch_arrow(url: str, topic: str, **query: Any) -> Iterator[Row]:
    """Fetch as Arrow streams, page by page."""
    for body, _ in _pages(url, topic, "application/vnd.apache.arrow.stream", query):
        with pyarrow.ipc.open_stream(body) as stream:
            for one in stream.read_all().to_pylist():
                headers = one["headers"] or []
                pairs = headers.items() if isinstance(headers, dict) else headers
                id = one["id"]
                yield row(
                    one["partition"],
                    one["offset"],
                    id.hex() if isinstance(id, bytes) else str(id),
                    one["key"],
                    one["value"],
                    {name: bytes(cell) for name, cell in pairs},
                )


def _pages(url: str, topic: str, accept: str, query: dict[str, Any]) -> Iterator[tuple[bytes, str]]:
    position = query.pop("start", "earliest")
    url = url.partition(",")[0]
    while True:
        asked = urlencode({"start": position, **query})
        where = f"{url}/v2/namespaces/default/topics/{topic}/messages?{asked}"
        request = urllib.request.Request(where, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            body, following = answer.read(), answer.headers["TMS-Next"]
        yield body, following
        if following == position:
            return
        position = following


def committed(
    polled: Iterable[Row], stored: Iterable[Row], committed: Iterable[Row]
) -> Iterator[Row]:
    """The rows of a poll without those that only readers of uncommitted messages see. A poll has
    the first ten bytes of an id: publish time and sequence."""
    hidden = {str(row[2])[:20] for row in stored} - {str(row[2])[:20] for row in committed}
    return (row for row in polled if row[2] not in hidden)


def poll_cdap(url: str, topic: str, limit: int) -> Iterator[Row]:
    """CDAP's poll, page by page behind the last id. Without a transaction it shows all that is
    stored, messages of rolled back and invalid transactions included."""
    last: bytes | None = None
    where = f"{url.partition(',')[0]}/v1/namespaces/default/topics/{topic}/poll"
    while True:
        start = b"\x04" if last is None else b"\x00" + _long(len(last)) + last
        body = start + (b"\x01" if last is None else b"\x00") + b"\x00" + _long(limit) + b"\x02"
        request = urllib.request.Request(
            where, body, {"Content-Type": "avro/binary"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found = list(_messages(answer.read()))
        if not found:
            return
        for id, payload in found:
            yield [0, None, id[:10].hex(), name_of(payload, {}), None, value_digest(payload)]
        last = found[-1][0]


def _long(number: int) -> bytes:
    """Avro's zigzag encoding of a number that is not negative."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _messages(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def cell() -> bytes:
        nonlocal at
        size = number()
        at += size
        return body[at - size : at]

    while count := number():
        if count < 0:
            count = -count
            number()
        for _ in range(count):
            yield cell(), cell()
