"""The contents of a request: names in its path, parameters, media types, and its body within
bounds.

* Names and parameters are decoded once, strictly: text that is not UTF-8 or walks directories is
  refused before anything reads it, and an unknown or repeated parameter is an error, not ignored.
* A body takes memory only after it was reserved in the service's budget: as much as has arrived, or
  as a compressed one is found to hold. A request without room waits a moment for it; the number of
  waiting requests is bounded, because they take memory, too.
"""

import asyncio
import difflib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, Self
from urllib.parse import unquote_to_bytes

from tms.api import routes
from tms.api.operation import Operation, S, read_query
from tms.api.parameters import LARGE_BYTES
from tms.errors import Invalid, Malformed, NotAcceptable, Overloaded, TooLarge, UnsupportedMedia
from tms.model.message import Buffer
from tms.model.topic import TopicName
from tms.server.http.compression import qualities
from tms.server.http.encoding import decompress, plain_bytes
from tms.server.http.exchange import Exchange, settle

WAITING_MAX = 128  # requests for memory of one kind; one more is refused at once


class Budget:
    """Bytes in flight of one kind, over all requests. Used by the event loop's thread."""

    def __init__(self, what: str, bytes_max: int, wait_s: float = 1.0) -> None:
        self.what = what
        self.bytes_max = bytes_max
        self.wait_s = wait_s
        self.bytes = 0
        self.returned = 0
        self.refused = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # also those that have given up
        self._waits = 0

    def try_take(self, size: int, held: int = 0) -> bool:
        """Reserve memory for a request that holds `held` bytes already, if there is room. True if
        it was reserved; the only request always gets it."""
        if self.bytes <= held or self.bytes + size <= self.bytes_max:
            self.bytes += size
            return True
        return False

    async def claim(self, size: int, held: int = 0) -> None:
        """Like `try_take`, after waiting up to `wait_s` for room. Raises `Overloaded`."""
        if self.try_take(size, held):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.wait_s
        while self._waits < WAITING_MAX:
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            room = loop.create_future()
            self._waiting.append(room)
            self._waits += 1
            try:
                await asyncio.wait([room], timeout=left_s)
            finally:
                self._waits -= 1
            if self.try_take(size, held):
                return
        self.refused += 1
        raise Overloaded(
            f"{self.bytes} bytes of {self.what} are under way, the limit of this service is "
            f"{self.bytes_max}. Try again in a moment.",
            retry_after_s=routes.RETRY_AFTER_S,
        )

    def release(self, size: int) -> None:
        """The memory is free again."""
        self.bytes -= size
        self.returned += size
        while self._waiting:
            settle(self._waiting.popleft())


class Body:
    """A request's body, decompressed, and the memory reserved for it while the caller is within
    `async with`. Entering raises `TooLarge`, `Overloaded`, `SlowRequest`, `Disconnected`, and what
    `encoding.decompress` raises."""

    __slots__ = ("_budget", "_bytes_max", "_exchange", "_reserved", "_threads", "data")

    def __init__(
        self,
        budget: Budget,
        threads: Executor,
        bytes_max: int,
        exchange: Exchange,
        own_bytes_max: int = LARGE_BYTES,
    ) -> None:
        self.data: Buffer = b""
        self._budget = budget
        self._threads = threads
        self._bytes_max = min(bytes_max, own_bytes_max)
        self._exchange = exchange
        self._reserved = 0

    async def __aenter__(self) -> Self:
        exchange, length = self._exchange, self._exchange.content_length
        try:
            if length is None:
                await self._read_chunked()
            elif length > self._bytes_max:
                raise self._too_large()
            else:
                if self._budget.try_take(length):
                    self._reserved = length
                else:
                    await self.reserve(length)
                if exchange.more_body:
                    self.data = data = bytearray(length)
                    await exchange.read_into(memoryview(data))
                else:
                    self.data, exchange.body = exchange.body, bytearray()
            if b"content-encoding" in exchange.headers:
                await self._decompress(header(exchange, b"content-encoding").lower())
        except BaseException:
            self._budget.release(self._reserved)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._budget.release(self._reserved)

    async def reserve(self, size: int) -> None:
        """Reserve more memory, for objects made of the body; waits a moment for it. Raises
        `Overloaded`."""
        await self._budget.claim(size, self._reserved)
        self._reserved += size

    async def _read_chunked(self) -> None:
        self.data = data = bytearray()
        async for piece in self._exchange.pieces():
            if len(data) + len(piece) > self._bytes_max:
                raise self._too_large()
            await self.reserve(len(piece))
            data += piece

    async def _decompress(self, coding: str) -> None:
        if coding in ("", "identity"):
            return
        loop, threads = asyncio.get_running_loop(), self._threads
        size = await loop.run_in_executor(threads, plain_bytes, coding, self.data, self._bytes_max)
        await self.reserve(size)
        plain = await loop.run_in_executor(threads, decompress, coding, self.data, size)
        self._budget.release(self._reserved - len(plain))
        self._reserved = len(plain)
        self.data = plain

    def _too_large(self) -> TooLarge:
        return TooLarge(f"A body has at most {self._bytes_max} bytes; send less at once.")


def answer_media(exchange: Exchange, offered: tuple[str, ...]) -> str:
    """The media type of the answer. Raises `NotAcceptable`."""
    media = accepted(exchange.headers.get(b"accept", b""), offered)
    coding = exchange.coding
    if media == routes.BLOCKS and coding is not None and not coding.may_be_plain:
        raise NotAcceptable(
            "Blocks go out as their producers have compressed them: allow `identity` in "
            "Accept-Encoding, or leave it out."
        )
    return media


def header(exchange: Exchange, wanted: bytes) -> str:
    """A header's value; empty when it is absent."""
    return exchange.headers.get(wanted, b"").decode("latin-1").strip()


@lru_cache(maxsize=1_024)
def writable_topic(namespace: bytes, topic: bytes) -> TopicName:
    """Like `topic_name`; also raises `Forbidden`."""
    name = topic_name(namespace, topic)
    name.require_writable()
    return name


@lru_cache(maxsize=1_024)
def topic_name(namespace: bytes, topic: bytes) -> TopicName:
    """The topic named by two raw path segments. Raises `Malformed` or `Invalid`."""
    return TopicName.of(path_text(namespace), path_text(topic))


@lru_cache(maxsize=1_024)
def path_arguments(operation: Operation, varying: tuple[bytes, ...]) -> Mapping[str, Any]:
    """The arguments in the path of a request, from its varying raw segments. Raises `Malformed` or
    `Invalid`."""
    return operation.in_path([path_text(raw) for raw in varying])


def path_text(raw: bytes) -> str:
    """A raw path segment, decoded once. Raises `Malformed`."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as exc:
        raise Malformed(f"The path is not UTF-8: {exc.reason} in {raw[:140]!r}.") from exc
    if text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\")) or "%" in text:
        raise Malformed(
            f"A name is no path and is percent-encoded at most once, got {text[:140]!r}."
        )
    return text


def query_of(query: bytes, struct: type[S]) -> S:
    """A query as its struct. Raises `Malformed` or `Invalid`."""
    return read_query(parameters(query, struct.__struct_fields__), struct)


def parameters(query: bytes, allowed: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a query, a blank also as `+`, as browsers write it. Raises `Malformed` or
    `Invalid`."""
    values: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        raw_name, _, raw_value = part.partition(b"=")
        try:
            name = unquote_to_bytes(raw_name).decode()
            value = unquote_to_bytes(raw_value.replace(b"+", b" ")).decode()
        except UnicodeDecodeError as exc:
            raise Malformed(f"The query is not UTF-8: {exc.reason} in {part[:140]!r}.") from exc
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            meant = (
                f"did you mean {near[0]}?" if near else f"known: {', '.join(allowed) or 'none'}."
            )
            raise Invalid(f"There is no parameter {name[:64]!r} here; {meant}", field=name[:64])
        if name in values:
            raise Invalid(f"The parameter {name} is given twice.", field=name)
        values[name] = value
    return values


@lru_cache(maxsize=256)
def content_type(value: bytes, readable: tuple[str, ...]) -> str:
    """The media type of a body. Raises `UnsupportedMedia`."""
    media, _, rest = value.decode("latin-1").partition(";")
    media = media.strip().lower()
    choice = " or ".join(readable)
    if media not in readable:
        got = repr(media[:100]) if media else "none"
        raise UnsupportedMedia(f"Content-Type is {choice} here, got {got}.")
    for parameter in rest.split(";") if rest.strip() else ():
        name, _, setting = parameter.partition("=")
        if name.strip().lower() == "charset" and setting.strip().strip('"').lower() != "utf-8":
            raise UnsupportedMedia(f"Text is read as UTF-8 only, got charset {setting[:40]!r}.")
    return media


@lru_cache(maxsize=256)
def accepted(value: bytes, offered: tuple[str, ...]) -> str:
    """The media type of those `offered` that the Accept header prefers; the first of equals. Raises
    `NotAcceptable`."""
    text = value.decode("latin-1").strip()
    ranges = qualities(text)

    def quality(media: str) -> float:
        """The quality of the most specific range that fits."""
        fitting = (media, media.partition("/")[0] + "/*", "*/*")
        return next((ranges[kind] for kind in fitting if kind in ranges), 0.0)

    best = max(offered, key=quality) if ranges else offered[0]
    if ranges and quality(best) <= 0:
        raise NotAcceptable(
            f"This can be answered as {' or '.join(offered)}, not as {text[:100]!r}."
        )
    return best
