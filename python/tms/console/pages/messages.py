"""The messages of a topic: a page of them, those that come, and those of a range as a file."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tms.api import bodies, routes
from tms.api.bodies import FetchedBody
from tms.console.cells import AUTO, FORMS
from tms.console.live import ended
from tms.console.pages.message_ranges import (
    MERGED_MAX,
    MessagePage,
    MessageRow,
    MessageSource,
    PageOffsets,
    offsets_at,
    offsets_in,
    offsets_text,
    page_before,
    page_from,
    position_in,
    row_of,
    source_of,
)
from tms.console.visit import PageAnswer, PageRoute, Streamed, Visit, WebPage, path_of
from tms.errors import Invalid, TMSError, Unauthenticated
from tms.model.access import Access
from tms.model.filter import as_filter
from tms.model.snapshot import Isolation
from tms.model.topic import TopicInfo, TopicName

LIMIT = 50
LIMITS = (20, 50, 200)
LIMIT_MAX = 200
PREVIEW_CHARS = 24_000  # of all values of a page
FOLLOWED_MAX = 200  # messages of one event, and rows in a page that follows
FOLLOWED_BYTES = 256 << 10
WAIT_S = 15.0  # for messages, after which an event tells that none came
FILE_MESSAGES = 1_000  # of one fetch for a file
FILE_BYTES = 1 << 20
_FIELDS = {"filter": "where"}  # of the form, by what errors call them


class _Look(NamedTuple):
    """The page that a visit asks for."""

    source: MessageSource
    page: MessagePage
    stop: PageOffsets  # before which the page ends
    removed: int  # messages at its beginning that are gone


async def show_messages(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Messages of a topic, from a place on or before it, those that match."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    resource = f"topic:{namespace}:{topic}"
    values = {
        "name": name,
        "info": info,
        "resource": resource,
        "may_consume": visit.may(Access.CONSUME, resource),
        "may_publish": visit.may(Access.PUBLISH, resource),
        "limits": LIMITS,
        "forms": FORMS,
        "limit": LIMIT,
        "page": None,
        "error": None,
        "error_field": "",
        "follows": visit.asked("follow") == "1",
        "merged_max": MERGED_MAX,
    }
    if not values["may_consume"]:
        return WebPage("messages.html", values)
    try:
        values |= _shown(visit, await _look(visit, name, info))
    except Unauthenticated:
        raise
    except TMSError as error:
        named = error.details.get("field") or ""
        values |= {"error": error, "error_field": _FIELDS.get(named, named)}
        return WebPage("messages.html", values, routes.status_of(error))
    return WebPage("messages.html", values)


async def follow(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The messages that come behind the offsets `start`, as events: `rows`, whose id is where the
    next event begins, with the HTML of rows and the number of messages that are still to come;
    `ended`, with the reason."""
    name = TopicName.of(namespace, topic)
    source = await _source(visit, name, await visit.ask("topics.describe_topic", name=name))
    at = _offsets(source, "start", source.end)
    if at is not source.end:  # a fetch refuses offsets of messages that are gone
        at = {**source.first, **at}
    return Streamed(_followed(source, {one: at[one] for one in source.first}))


async def download(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The messages from the offsets `start` to before the offsets `until`, a line of JSON each."""
    name = TopicName.of(namespace, topic)
    source = await _source(visit, name, await visit.ask("topics.describe_topic", name=name))
    begin = source.within(_offsets(source, "start", source.first))
    until = source.within(_offsets(source, "until", source.end))
    left = _before(begin, until)
    first = await source.fetch(left, FILE_MESSAGES, FILE_BYTES) if left else None
    lines = _lines(source, left, until, first)
    return Streamed(lines, routes.NDJSON, f"{namespace}.{topic}.ndjson")


# -- a page ----------------------------------------------------------------------------------------


async def _source(visit: Visit, name: TopicName, info: TopicInfo) -> MessageSource:
    """The messages that a query names. Raises `Invalid`, and the errors of questions."""
    as_filter(visit.asked("where") or None)
    form = visit.asked("as", AUTO)
    if form not in FORMS:
        raise Invalid(f"as is one of {', '.join(FORMS)}, got {form!r:.40}.", field="as")
    source = await source_of(visit, name, info, _partitions(visit, info))
    return source._replace(limit=visit.number("limit", LIMIT, 1, LIMIT_MAX))


def _partitions(visit: Visit, info: TopicInfo) -> range:
    """The partitions that a query names: one or all, but the first one of too many to merge."""
    count = info.settings.partitions
    if visit.asked("partition"):
        number = visit.number("partition", 0, 0, count - 1)
        return range(number, number + 1)
    return range(count if count <= MERGED_MAX else 1)


def _offsets(source: MessageSource, field: str, default: PageOffsets) -> PageOffsets:
    """The offsets in a field of the query. Raises `Invalid`."""
    text = source.visit.asked(field)
    at = offsets_in(text) if text else default
    if at is None:
        raise Invalid(f"{field} is PARTITION:OFFSET,…, got {text!r:.40}.", field=field)
    return at


async def _look(visit: Visit, name: TopicName, info: TopicInfo) -> _Look:
    source = await _source(visit, name, info)
    text = visit.asked("start").strip()
    if not text or text == "latest":
        behind = source.end if text else _offsets(source, "before", source.end)
        behind = source.within(behind)
        return _Look(source, await page_before(source, behind), behind, 0)
    begin = offsets_in(text)
    if begin is None:
        begin = await _begin(source, text)
    removed = sum(max(0, first - begin.get(one, first)) for one, first in source.first.items())
    page = await page_from(source, source.within(begin))
    return _Look(source, page, source.end, removed)


async def _begin(source: MessageSource, text: str) -> PageOffsets:
    """The offsets of the place that a text names. Raises errors about the field `start`."""
    try:
        return await offsets_at(source, position_in(text))
    except Unauthenticated:
        raise
    except TMSError as error:
        error.details["field"] = "start"
        raise


def _shown(visit: Visit, look: _Look) -> dict[str, Any]:
    """The values of a template for a page of messages."""
    source = look.source
    page = look.page
    behind = offsets_text(page.behind)
    begin = offsets_text(page.begin)
    command = ["consume", str(source.name), "--exit-at-end", "--limit", str(source.limit)]
    if len(page.begin) == 1:
        ((partition, offset),) = page.begin.items()
        command += ["--partition", str(partition), "--start", f"offset:{offset}"]
    if source.where:
        command += ["--where", source.where]
    if source.isolation != Isolation.COMMITTED:
        command += ["--isolation", source.isolation]
    at = path_of("messages", *source.name)
    return _of_rows(source, page.rows) | {
        "page": page,
        "source": source,
        "limit": source.limit,
        "kept_rows": FOLLOWED_MAX,
        "removed": look.removed,
        "is_unfinished": page.behind != look.stop,
        "has_more": any(page.behind[one] < end for one, end in source.end.items()),
        "has_earlier": any(page.begin[one] > first for one, first in source.first.items()),
        "next": visit.address(start=behind, before=None, follow=None),
        "previous": visit.address(start=None, before=begin, follow=None),
        "earliest": visit.address(start="earliest", before=None, follow=None),
        "latest": visit.address(start=None, before=None, follow=None),
        "here": visit.address(start=begin, before=None, follow=None),
        "follow": visit.address(follow=1),
        "followed": _beside(visit, at, "follow", start=behind),
        "this_file": _beside(visit, at, "download", start=begin, until=behind),
        "whole_file": _beside(visit, at, "download", start=begin, until=offsets_text(source.end)),
        "same": visit.same_as(
            command, visit.question("fetch", source.arguments(page.begin, source.limit))
        ),
    }


def _of_rows(source: MessageSource, rows: Sequence[MessageRow]) -> dict[str, Any]:
    """The values of a template for rows. `isolated`: of the pages of these messages."""
    is_committed = source.isolation == Isolation.COMMITTED
    return {
        "name": source.name,
        "rows": rows,
        "form": source.visit.asked("as", AUTO),
        "chars": PREVIEW_CHARS // source.limit,
        "isolated": "" if is_committed else f"?isolation={source.isolation}",
    }


def _beside(visit: Visit, at: str, action: str, **more: str) -> str:
    """The address of an action on what is shown."""
    query = visit.address(before=None, follow=None, limit=None, **more).partition("?")[2]
    return f"{at}/{action}?{query}"


# -- those that come -------------------------------------------------------------------------------


async def _followed(source: MessageSource, at: PageOffsets) -> AsyncGenerator[bytes]:
    visit = source.visit
    loop = asyncio.get_running_loop()
    yield b": the messages of this topic\n\n"
    with visit.pace.viewer():
        while not visit.exchange.hurried:
            try:
                fetched = await source.fetch(at, FOLLOWED_MAX, FOLLOWED_BYTES, WAIT_S)
                began_s = loop.time()
                at = _reached(at, fetched)
                event = await _event(source, at, fetched)
                took_s = loop.time() - began_s
            except TMSError as error:
                yield ended(error.message)
                return
            yield event
            await visit.exchange.sleep(loop.create_future(), visit.pace.pause_s(took_s))


async def _event(source: MessageSource, at: PageOffsets, fetched: FetchedBody) -> bytes:
    """The messages of a fetch, which has looked at everything before `at`."""
    html = ""
    if fetched.messages:
        rows = sorted(map(row_of, fetched.messages), key=lambda row: row.order)
        values = _of_rows(source, rows) | {"chars": PREVIEW_CHARS // FOLLOWED_MAX}
        html = (await source.visit.parts(WebPage("messages.html", values), ("rows",)))["rows"]
    behind = sum(fetched.ends.values()) - sum(at.values())
    shown = msgspec.json.encode({"html": html, "behind": max(0, behind)})
    return b"id: %b\nevent: rows\ndata: %b\n\n" % (offsets_text(at).encode(), shown)


# -- a file ----------------------------------------------------------------------------------------


async def _lines(
    source: MessageSource, left: PageOffsets, until: PageOffsets, fetched: FetchedBody | None
) -> AsyncGenerator[bytes]:
    """The messages of a range; `fetched` are the first ones. Raises the errors of a fetch, which
    cut the file off."""
    while fetched is not None:
        kept = [one for one in fetched.messages if one.offset < until[one.partition]]
        yield b"".join(bodies.encode(one) + b"\n" for one in kept)
        left = _before(_reached(left, fetched), until)
        fetched = await source.fetch(left, FILE_MESSAGES, FILE_BYTES) if left else None


def _before(at: PageOffsets, until: PageOffsets) -> PageOffsets:
    """The partitions that are not at their ends."""
    return {one: offset for one, offset in at.items() if offset < until[one]}


def _reached(at: PageOffsets, fetched: FetchedBody) -> Mapping[int, int]:
    """The offsets behind which nothing was looked at."""
    return {one: max(offset, fetched.reached.get(str(one), 0)) for one, offset in at.items()}


_MESSAGES = "/console/messages/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", _MESSAGES, show_messages),
    PageRoute("GET", f"{_MESSAGES}/follow", follow),
    PageRoute("GET", f"{_MESSAGES}/download", download),
)
