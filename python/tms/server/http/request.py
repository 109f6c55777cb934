"""What a request says: names in its path, parameters, media types, and its body within bounds.

* Names and parameters are decoded once, strictly: what is not UTF-8 or walks directories is refused
  before anything looks at it, and an unknown or repeated parameter is an error, not ignored.
* A body takes memory only after it was reserved in the service's budget: as much as has arrived, or
  as a compressed one is found to hold. Whoever finds no room waits a moment for it; so many may
  wait, because waiting takes memory, too.
"""

import asyncio
import difflib
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from tms.api import routes
from tms.errors import Invalid, Malformed, NotAcceptable, Overloaded, TooLarge, UnsupportedMedia
from tms.model.message import Buffer
from tms.model.topic import TopicName
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

    def take(self, size: int, held: int = 0) -> None:
        """Reserve memory for a request that holds `held` bytes already; one that is alone always
        gets it. Raises `Overloaded`."""
        if not self.try_take(size, held):
            self.refused += 1
            raise Overloaded(
                f"{self.bytes} bytes of {self.what} are under way, the limit of this service is "
                f"{self.bytes_max}. Try again in a moment.",
                retry_after_s=routes.RETRY_AFTER_S,
            )

    def try_take(self, size: int, held: int = 0) -> bool:
        """The same, if there is room now; whether there is."""
        if self.bytes <= held or self.bytes + size <= self.bytes_max:
            self.bytes += size
            return True
        return False

    async def claim(self, size: int, held: int = 0) -> None:
        """Like `take`, after waiting up to `wait_s` for room."""
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
        self.take(size, held)

    def give_back(self, size: int) -> None:
        """The memory is free again."""
        self.bytes -= size
        self.returned += size
        while self._waiting:
            settle(self._waiting.popleft())


class Body:
    """A request's body and the memory reserved for it; `release` it when done."""

    __slots__ = ("_budget", "_reserved", "bytes_max", "data")

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self.data: Buffer = b""
        self.bytes_max = bytes_max
        self._budget = budget
        self._reserved = 0

    def release(self) -> None:
        """Give the reserved memory back."""
        self._budget.give_back(self._reserved)
        self._reserved = 0

    async def reserve(self, size: int) -> None:
        """Reserve more memory, for what is made of the body; waits a moment for it. Raises
        `Overloaded`."""
        await self._budget.claim(size, self._reserved)
        self._reserved += size

    async def read(self, exchange: Exchange) -> None:
        """Receive the body. Raises `TooLarge`, `Overloaded`, `SlowRequest` or `Disconnected`."""
        length = exchange.content_length
        if length is None:
            await self._read_chunked(exchange)
            return
        if length > self.bytes_max:
            raise self._too_large()
        if self._budget.try_take(length):
            self._reserved = length
        else:
            await self.reserve(length)
        data = bytearray(length)
        if length:
            await exchange.read_into(memoryview(data))
        self.data = data

    async def _read_chunked(self, exchange: Exchange) -> None:
        data = bytearray()
        async for piece in exchange.pieces():
            if len(data) + len(piece) > self.bytes_max:
                raise self._too_large()
            await self.reserve(len(piece))
            data += piece
        self.data = data

    async def decompress(self, coding: str, threads: Executor) -> None:
        """Undo the Content-Encoding. Raises what `encoding.decompress` raises, and `Overloaded`."""
        if coding in ("", "identity"):
            return
        loop, bytes_max = asyncio.get_running_loop(), self.bytes_max
        size = await loop.run_in_executor(threads, plain_bytes, coding, self.data, bytes_max)
        await self.reserve(size)
        plain = await loop.run_in_executor(threads, decompress, coding, self.data, size)
        self._budget.give_back(self._reserved - len(plain))
        self._reserved = len(plain)
        self.data = plain

    def _too_large(self) -> TooLarge:
        return TooLarge(f"A body has at most {self.bytes_max} bytes; send less at once.")


@asynccontextmanager
async def received(
    exchange: Exchange, budget: Budget, bytes_max: int, threads: Executor
) -> AsyncIterator[Body]:
    """The body of a request, decompressed; its memory is reserved while the caller is within.
    Raises what `Body.read` and `Body.decompress` raise."""
    body = Body(budget, bytes_max)
    try:
        await body.read(exchange)
        await body.decompress(header(exchange, b"content-encoding").lower(), threads)
        yield body
    finally:
        body.release()


def header(exchange: Exchange, wanted: bytes) -> str:
    """A header's value, several joined as HTTP says; empty when it is absent."""
    headers: list[tuple[bytes, bytes]] = exchange.headers
    return ", ".join(value.decode("latin-1") for name, value in headers if name == wanted).strip()


@lru_cache(maxsize=1_024)
def topic_name(namespace: bytes, topic: bytes) -> TopicName:
    """The topic named by two raw path segments. Raises `Malformed` or `Invalid`."""
    return TopicName.of(path_text(namespace), path_text(topic))


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


def parameters(query: bytes, allowed: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a query. Raises `Malformed` or `Invalid`."""
    found: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        raw_name, _, raw_value = part.partition(b"=")
        try:
            name = unquote_to_bytes(raw_name).decode()
            value = unquote_to_bytes(raw_value).decode()
        except UnicodeDecodeError as exc:
            raise Malformed(f"The query is not UTF-8: {exc.reason} in {part[:140]!r}.") from exc
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            meant = (
                f"did you mean {near[0]}?" if near else f"known: {', '.join(allowed) or 'none'}."
            )
            raise Invalid(f"There is no parameter {name[:64]!r} here; {meant}", field=name[:64])
        if name in found:
            raise Invalid(f"The parameter {name} is given twice.", field=name)
        found[name] = value
    return found


def whole_number(given: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    """A parameter that is a whole number. Raises `Invalid`."""
    text = given.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise Invalid(
            f"{name} is a whole number from {low} to {high}, got {text[:40]!r}.", field=name
        )
    return int(text)


@lru_cache(maxsize=256)
def content_type(value: str, readable: tuple[str, ...]) -> str:
    """The media type of a body. Raises `UnsupportedMedia`."""
    media, _, rest = value.partition(";")
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
def accepted(value: str, made: tuple[str, ...]) -> str:
    """Which of the media types `made` the Accept header likes best; the first of equals. Raises
    `NotAcceptable`."""
    ranges = [_media_range(part) for part in value.split(",") if part.strip()]
    if not ranges:
        return made[0]
    quality, best = max(
        ((_quality(media, ranges), media) for media in made), key=lambda found: found[0]
    )
    if quality <= 0:
        raise NotAcceptable(f"This can be answered as {' or '.join(made)}, not as {value[:100]!r}.")
    return best


def _media_range(part: str) -> tuple[str, float]:
    media, *settings = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for setting in settings:
        if setting.startswith("q="):
            try:
                quality = float(setting[2:])
            except ValueError:
                quality = 0.0
    return media, quality


def _quality(media: str, ranges: list[tuple[str, float]]) -> float:
    """The most specific range that fits decides."""
    wanted = dict(ranges)
    for candidate in (media, media.partition("/")[0] + "/*", "*/*"):
        if candidate in wanted:
            return wanted[candidate]
    return 0.0
