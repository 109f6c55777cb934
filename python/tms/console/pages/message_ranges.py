"""The messages of a page: those from a place on, or before it, of one partition or of all.

    earliest, latest, a time, an id, an offset ─▶ an offset of each partition ─▶ fetches ─▶ a page

Invariants

* Offsets name the same messages for ever, so that the address of a page does, too: `behind` and
  `begin` of a page are offsets by partition, from which the next and the previous one begin.
* Messages of several partitions come in the order of their publish times, across pages, but for
  those that are published while a page is made. Each is on one page. With a filter the order is
  kept within a page.
* A page takes a bounded number of fetches, one at a time: the memory for the answers of all
  requests is small. Each is of up to about `PAGE_BYTES` but at least one message. Of a larger
  value `KEPT_BYTES` are kept.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tms.api.bodies import FetchedBody, MessageOut
from tms.api.messages import cells_in, time_in
from tms.console.cells import LAID_OUT_BYTES_MAX, trace_id
from tms.console.visit import Visit
from tms.errors import Invalid, Overloaded
from tms.model.message import Headers
from tms.model.position import Position, PositionKind
from tms.model.snapshot import Isolation
from tms.model.topic import TopicInfo, TopicName

PageOffsets = Mapping[int, int]  # by partition
PAGE_BYTES = 1 << 20  # of values
KEPT_BYTES = LAID_OUT_BYTES_MAX + 1  # of a cell: one more says that it is too large to lay out
MERGED_MAX = 64  # partitions of a page without a filter
BACK_MESSAGES = 10_000  # that are looked at backwards with a filter
MATCHING_MAX = 1_000  # of these
FETCH_BYTES = 256 << 10  # of a fetch that is not the page's only one
FETCHES_MAX = 8  # of a page, for each of its partitions and besides
PAUSES_S = (0.05, 0.1, 0.2, 0.4)  # between tries of a fetch for which memory is short
WIDER = 8  # a range without messages is followed by one of so many times its offsets
_TIME_DIGITS = 12  # of a number that is a time in ms rather than an offset
_OFFSETS = re.compile(r"[0-9]{1,4}:[0-9]{1,18}(?:,[0-9]{1,4}:[0-9]{1,18})*", re.ASCII)
_ID_CHARS = 40


class KeptCell(NamedTuple):
    """A key or value: all of it, or the beginning of a large one, and its size."""

    begin: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing."""
        return len(self.begin) == self.size


class MessageRow(NamedTuple):
    """A message as a page shows it. `key`, `value`: None if it has none."""

    partition: int
    offset: int
    id: str
    time_ms: int
    event_time_ms: int | None
    key: KeptCell | None
    value: KeptCell | None
    headers: Headers

    @property
    def order(self) -> tuple[int, int, int]:
        """By which messages of several partitions are merged."""
        return self.time_ms, self.partition, self.offset

    @property
    def trace(self) -> str:
        """The trace to which it belongs; empty if there is none."""
        return trace_id(self.headers)

    @property
    def size(self) -> int:
        """Bytes of the key and the value."""
        return sum(cell.size for cell in (self.key, self.value) if cell is not None)


class MessageSource(NamedTuple):
    """The messages from which pages are made. `first`, `end`: the offsets of the first readable one
    and behind the last one, of the partitions of the pages."""

    visit: Visit
    name: TopicName
    first: PageOffsets
    end: PageOffsets
    where: str
    isolation: str
    limit: int

    async def fetch(
        self, at: PageOffsets, limit: int, bytes_max: int = PAGE_BYTES, wait_s: float = 0
    ) -> FetchedBody:
        """Messages from these offsets on; waits for the first one, no longer than the browser.
        Raises the errors of a fetch."""
        arguments = self.arguments(at, limit, bytes_max) | {"wait_s": wait_s}
        for pause_s in PAUSES_S:
            with suppress(Overloaded):
                return await self._fetched(arguments)
            await asyncio.sleep(pause_s)
        return await self._fetched(arguments)

    async def _fetched(self, arguments: Mapping[str, Any]) -> FetchedBody:
        fetched: FetchedBody = await self.visit.ask("fetch", **arguments)
        return fetched

    def arguments(self, at: PageOffsets, limit: int, bytes_max: int = PAGE_BYTES) -> dict[str, Any]:
        """The arguments of that fetch."""
        return {
            "name": self.name,
            "start": ",".join(f"{partition}:offset:{offset}" for partition, offset in at.items()),
            "limit": limit,
            "bytes_max": max(1, bytes_max),
            "isolation": self.isolation,
            "where": self.where or None,
        }

    def within(self, at: PageOffsets) -> PageOffsets:
        """An offset of each partition, none outside of what can be read. Partitions that `at` does
        not have are new, and begin at their first."""
        return {
            partition: min(max(at.get(partition, first), first), self.end[partition])
            for partition, first in self.first.items()
        }


class MessagePage(NamedTuple):
    """Messages, from the offsets `begin` to before the offsets `behind`."""

    rows: Sequence[MessageRow]
    begin: PageOffsets
    behind: PageOffsets

    @property
    def looked_at(self) -> int:
        """The number of offsets in the range."""
        return sum(self.behind[partition] - begin for partition, begin in self.begin.items())


def row_of(message: MessageOut) -> MessageRow:
    """A fetched message as a page keeps it."""
    key, value, headers = cells_in(message.key, message.value, message.headers, message.encoding)
    return MessageRow(
        message.partition,
        message.offset,
        message.id,
        message.timestamp_ms,
        time_in(message.event_time_ms),
        _kept(key),
        _kept(value),
        headers,
    )


def _kept(cell: bytes | None) -> KeptCell | None:
    return None if cell is None else KeptCell(cell[:KEPT_BYTES], len(cell))


# -- where a page begins ---------------------------------------------------------------------------


def offsets_text(at: PageOffsets) -> str:
    """Offsets as a value of a query: `0:120,1:33`."""
    return ",".join(f"{partition}:{offset}" for partition, offset in at.items())


def offsets_in(text: str) -> PageOffsets | None:
    """The inverse; None if it is another text."""
    if not _OFFSETS.fullmatch(text):
        return None
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(partition): int(offset) for partition, offset in pairs}


def position_in(text: str) -> Position:
    """The position that a person means: `earliest`, `latest`, a time (in UTC, or in ms since 1970),
    an id, an offset. Raises `Invalid`, `BadMessageId`."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < _ID_CHARS:
        is_time = len(text) >= _TIME_DIGITS
        return Position.parse(f"{'time' if is_time else 'offset'}:{text}")
    if "-" in text:
        try:
            time = datetime.fromisoformat(text.replace(" ", "T", 1).removesuffix("Z"))
        except ValueError as exc:
            raise Invalid(
                f"{text!r:.60} is no time: write it as 2026-11-28 17:00:00, in UTC.", field="start"
            ) from exc
        utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time
        return Position.time(round(utc.timestamp() * 1_000))
    return Position.parse(text)


async def offsets_at(source: MessageSource, position: Position) -> PageOffsets:
    """The offsets of a position, of messages that may be gone. Raises the errors of
    `topics.offsets`."""
    match position.kind:
        case PositionKind.EARLIEST:
            return source.first
        case PositionKind.LATEST:
            return source.end
        case PositionKind.OFFSET:
            return dict.fromkeys(source.first, position.number)
    at: PageOffsets = await source.visit.ask(
        "topics.offsets", name=source.name, at=position, isolation=Isolation(source.isolation)
    )
    return at


async def source_of(
    visit: Visit, name: TopicName, info: TopicInfo, partitions: Iterable[int]
) -> MessageSource:
    """The messages of some partitions, as the query of a visit wants them. Raises `Invalid`."""
    isolation = visit.asked("isolation", Isolation.COMMITTED)
    if isolation not in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
        raise Invalid(
            f"isolation is committed or uncommitted, got {isolation!r:.40}.", field="isolation"
        )
    ends = await visit.ask("topics.offsets", name=name, isolation=Isolation(isolation))
    first = {part.partition: part.start_offset for part in info.partition_infos}
    wanted = [one for one in partitions if one in ends and one in first]
    return MessageSource(
        visit,
        name,
        {one: min(first[one], ends[one]) for one in wanted},
        {one: ends[one] for one in wanted},
        visit.asked("where"),
        isolation,
        0,
    )


# -- pages -----------------------------------------------------------------------------------------


async def page_from(source: MessageSource, begin: PageOffsets) -> MessagePage:
    """The messages from these offsets on. Raises the errors of a fetch."""
    if source.where:
        return await _matching(source, begin, source.end, source.limit)
    return await _Merge(source, begin).forward()


async def page_before(source: MessageSource, behind: PageOffsets) -> MessagePage:
    """The last messages before these offsets. With a filter: of the `BACK_MESSAGES` before them, or
    fewer if too many of these match. Raises the errors of a fetch."""
    if not source.where:
        return await _Merge(source, behind).backward()
    looked_at = BACK_MESSAGES
    while True:
        share = max(1, looked_at // max(1, len(behind)))
        begin = {one: max(source.first[one], offset - share) for one, offset in behind.items()}
        page = await _matching(source, begin, behind, MATCHING_MAX)
        if page.behind == behind or share == 1:
            return _last(page, source.limit)
        looked_at //= WIDER


async def _matching(
    source: MessageSource, begin: PageOffsets, before: PageOffsets, limit: int
) -> MessagePage:
    """The messages of a range that match, as far as one fetch looks."""
    if not begin:
        return MessagePage((), begin, begin)
    fetched = await source.fetch(begin, limit)
    reached = {
        one: min(max(offset, fetched.reached.get(str(one), 0)), before[one])
        for one, offset in begin.items()
    }
    rows = [row_of(one) for one in fetched.messages if one.offset < before[one.partition]]
    return MessagePage(sorted(rows, key=lambda row: row.order), begin, reached)


def _last(page: MessagePage, limit: int) -> MessagePage:
    """The last messages of a page."""
    begin = dict(page.begin)
    for row in page.rows[:-limit]:
        begin[row.partition] = row.offset + 1
    return MessagePage(page.rows[-limit:], begin, page.behind)


class _Merge:
    """Messages of several partitions, in the order of their times."""

    def __init__(self, source: MessageSource, at: PageOffsets) -> None:
        self._source = source
        self._from = at
        self._at = dict(at)  # how far each partition was looked at
        self._heads: dict[int, deque[MessageRow]] = {one: deque() for one in at}
        self._share = 0  # messages of the next fetch of a partition
        self._widths: dict[int, int] = {}  # offsets of the next look backwards, if not that many
        self._fetches_left = FETCHES_MAX * (len(at) + 1)
        self._rows: list[MessageRow] = []
        self._size = 0

    async def forward(self) -> MessagePage:
        """The first messages."""
        end = self._source.end
        while await self._have_heads(end, self._ahead):
            heads = [head for head in self._heads.values() if head]
            self._take(min(heads, key=lambda head: head[0].order).popleft())
        behind = {
            one: self._heads[one][0].offset if self._heads[one] else at
            for one, at in self._at.items()
        }
        return MessagePage(self._rows, self._from, behind)

    async def backward(self) -> MessagePage:
        """The last messages."""
        first = self._source.first
        while await self._have_heads(first, self._behind):
            heads = [head for head in self._heads.values() if head]
            self._take(max(heads, key=lambda head: head[-1].order).pop())
        begin = {
            one: self._heads[one][-1].offset + 1 if self._heads[one] else at
            for one, at in self._at.items()
        }
        return MessagePage(self._rows[::-1], begin, self._from)

    def _take(self, row: MessageRow) -> None:
        self._rows.append(row)
        self._size += row.size

    async def _have_heads(self, stop: PageOffsets, fill: Callable[[int], Awaitable[None]]) -> bool:
        """True once the next message of each partition is known, and the page has room for one.
        `stop`: where a partition ends; `fill` looks further in one."""
        left = self._source.limit - len(self._rows)
        while left > 0 and self._size < PAGE_BYTES:
            dry = [one for one, at in self._at.items() if not self._heads[one] and at != stop[one]]
            if not dry:
                return any(self._heads.values())
            self._fetches_left -= len(dry)
            if self._fetches_left < 0:
                return False
            self._share = left // len(dry) + 1
            for partition in dry:
                await fill(partition)
        return False

    async def _ahead(self, partition: int) -> None:
        """The next messages of a partition."""
        at = self._at[partition]
        end = self._source.end[partition]
        fetched = await self._source.fetch({partition: at}, self._share, FETCH_BYTES)
        rows = [row_of(one) for one in fetched.messages if one.offset < end]
        self._heads[partition].extend(rows)
        self._at[partition] = min(max(at, fetched.reached.get(str(partition), 0)), end)

    async def _behind(self, partition: int) -> None:
        """The messages before those of a partition that were looked at. A range whose messages are
        too large for one fetch is left for the next look, which takes less of it."""
        stop = self._at[partition]
        width = self._widths.pop(partition, self._share)
        start = max(self._source.first[partition], stop - width)
        fetched = await self._source.fetch({partition: start}, width, FETCH_BYTES)
        rows = [row_of(one) for one in fetched.messages if one.offset < stop]
        is_whole = len(rows) < len(fetched.messages)
        if not is_whole and fetched.reached.get(str(partition), 0) < stop:
            self._widths[partition] = max(1, min(len(rows), width // 2))
            return
        self._heads[partition].extend(rows)
        self._at[partition] = start
        if not rows:
            self._widths[partition] = min(width * WIDER, BACK_MESSAGES)
