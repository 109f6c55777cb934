"""One message: all of it, its neighbours, its cells as files, the reason for which it died, and its
erasure."""

from typing import Any, NamedTuple

from tms.api.bodies import FetchedBody, MessageOut
from tms.api.erasing import erase_body
from tms.api.messages import cells_in
from tms.console.cells import AUTO, FORMS, plain
from tms.console.pages.message_ranges import (
    MessageRow,
    MessageSource,
    offsets_text,
    page_before,
    page_from,
    row_of,
    source_of,
)
from tms.console.rendering import segment
from tms.console.visit import (
    NUMBER_CHARS_MAX,
    Download,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import Invalid, NotFound, TMSError
from tms.model.access import Access
from tms.model.ids import MessageId
from tms.model.message import Headers
from tms.model.position import Position
from tms.model.queue import DEAD_GROUP, DEAD_ORIGIN, DeadOrigin, dead_origin
from tms.model.snapshot import Isolation
from tms.model.topic import PARTITIONS_MAX, TopicName

VALUE_CHARS = 16_000
KEY_CHARS = 2_000
HEADER_CHARS = 500
HEADERS_SHOWN = 50
AGAIN_BYTES_MAX = 1 << 20  # of a value that a form holds
_CELLS = ("value", "key")


class _DeadLetter(NamedTuple):
    """The queue whose workers gave a message up, and its origin. `at`: the address of the
    original's page; `mend`: that of the form that mends it."""

    topic: TopicName
    group: str
    origin: DeadOrigin
    at: str
    mend: str


async def show_message(
    visit: Visit, namespace: str, topic: str, partition: str, id: str
) -> PageAnswer:
    """A message with everything that it has; with `go`, the message before or behind it."""
    name = TopicName.of(namespace, topic)
    resource = f"topic:{namespace}:{topic}"
    found = await found_message(visit, name, partition, id)
    row = row_of(found)
    if visit.asked("go"):
        return await _neighbour(visit, name, row)
    form = visit.asked("as", AUTO)
    if form not in FORMS:
        raise Invalid(f"as is one of {', '.join(FORMS)}, got {form!r:.40}.", field="as")
    command = ["consume", str(name), "--start", row.id, "--partition", str(row.partition)]
    isolation = visit.asked("isolation")
    values = {
        "name": name,
        "row": row,
        "at": path_of("messages", namespace, topic, row.partition, row.id),
        "form": form,
        "forms": FORMS,
        "value_chars": VALUE_CHARS,
        "key_chars": KEY_CHARS,
        "header_chars": HEADER_CHARS,
        "headers_shown": HEADERS_SHOWN,
        "dead": _dead_letter(row),
        "isolated": f"&isolation={segment(isolation)}" if isolation else "",
        "around": offsets_text({row.partition: row.offset}),
        "resource": resource,
        "may_publish": visit.may(Access.PUBLISH, resource),
        "may_manage": visit.may(Access.MANAGE, resource),
        "fits_form": row.size <= AGAIN_BYTES_MAX,
        "same": visit.same_as([*command, "--limit", "1"], _question(visit, name, partition, id)),
    }
    return WebPage("message.html", values)


async def save(visit: Visit, namespace: str, topic: str, partition: str, id: str) -> PageAnswer:
    """The value of a message, or its key (`cell`), as a file."""
    cell = visit.asked("cell", _CELLS[0])
    if cell not in _CELLS:
        raise Invalid(f"cell is {' or '.join(_CELLS)}, got {cell!r:.40}.", field="cell")
    found = await found_message(visit, TopicName.of(namespace, topic), partition, id)
    key, value, _ = cells_of(found)
    content = value if cell == _CELLS[0] else key
    if content is None:
        raise NotFound(f"The message has no {cell}.")
    return Download(content, f"{namespace}.{topic}.{found.partition}.{found.offset}.{cell}")


async def ask_to_erase(
    visit: Visit, namespace: str, topic: str, partition: str, id: str
) -> PageAnswer:
    """The page on which a visitor confirms that a message is to be erased."""
    name = TopicName.of(namespace, topic)
    row = row_of(await found_message(visit, name, partition, id))
    command = ["topic", "erase", str(name), "--id", row.id, "--partition", str(row.partition)]
    values = {
        "name": name,
        "row": row,
        "at": path_of("messages", namespace, topic, row.partition, row.id),
        "typed": str(name),
        "same": visit.same_as(command, _erasure(visit, name, row.partition, row.id)),
    }
    return WebPage("message_erase.html", values)


async def erase(visit: Visit, namespace: str, topic: str, partition: str, id: str) -> PageAnswer:
    """Erase a message of a topic whose name was typed."""
    name = TopicName.of(namespace, topic)
    visit.require_typed(str(name))
    number, message_id = _place(partition, id)
    erased = (await visit.put(_erasure(visit, name, number, str(message_id)))).erased
    back = path_of("messages", namespace, topic)
    if not erased:
        raise NotFound(
            f"Nothing was erased: partition {number} of {name} has no message {message_id} any "
            "more."
        )
    return Redirect(back, Notice(f"The message {message_id} was erased from {name}."))


async def found_message(visit: Visit, name: TopicName, partition: str, id: str) -> MessageOut:
    """A message by its place. Raises `NotFound`, `BadMessageId`, and the errors of a fetch."""
    number, message_id = _place(partition, id)
    fetched: FetchedBody = await visit.put(_question(visit, name, partition, id))
    for message in fetched.messages:
        if message.id == str(message_id):
            return message
    raise NotFound(
        f"Partition {number} of {name} has no message {message_id}: it was erased, or removed by "
        "retention or compaction, or its transaction is open or was rolled back."
    )


def cells_of(message: MessageOut) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of a fetched message."""
    return cells_in(message.key, message.value, message.headers, message.encoding)


def _place(partition: str, id: str) -> tuple[int, MessageId]:
    """The partition and the id in a path. Raises `Invalid`, `BadMessageId`."""
    is_number = partition.isascii() and partition.isdigit() and len(partition) <= NUMBER_CHARS_MAX
    if not is_number or int(partition) >= PARTITIONS_MAX:
        raise Invalid(f"A partition is a number below {PARTITIONS_MAX}, got {partition!r:.40}.")
    return int(partition), MessageId.parse(id)


def _question(visit: Visit, name: TopicName, partition: str, id: str) -> Any:
    number, message_id = _place(partition, id)
    arguments = {
        "name": name,
        "start": f"{number}:{Position.at(message_id)}",
        "limit": 1,
        "bytes_max": 1,
        "isolation": visit.asked("isolation", Isolation.COMMITTED),
    }
    return visit.question("fetch", arguments)


def _erasure(visit: Visit, name: TopicName, partition: int, id: str) -> Any:
    body = erase_body(None, MessageId.parse(id), partition)
    return visit.question("topics.erase", {"name": name}, body=body)


async def _neighbour(visit: Visit, name: TopicName, row: MessageRow) -> PageAnswer:
    """Lead to the message before or behind one in its partition."""
    info = await visit.ask("topics.describe_topic", name=name)
    source = (await source_of(visit, name, info, (row.partition,)))._replace(limit=1, where="")
    is_before = visit.asked("go") == "previous"
    rows = await _beside(source, row, is_before)
    at = path_of("messages", *name, row.partition, rows[0].id if rows else row.id)
    isolation = visit.asked("isolation")
    at += f"?isolation={segment(isolation)}" if isolation else ""
    if rows:
        return Redirect(at)
    side = "first" if is_before else "last"
    return Redirect(at, Notice(f"This is the {side} message of partition {row.partition}."))


async def _beside(source: MessageSource, row: MessageRow, is_before: bool) -> list[MessageRow]:
    at = {row.partition: row.offset + (not is_before)}
    make = page_before if is_before else page_from
    return [*(await make(source, source.within(at))).rows]


def _dead_letter(row: MessageRow) -> _DeadLetter | None:
    """The reason for which a message is among dead letters; None if it says none that can be
    read."""
    headers = row.headers
    named = headers.get(DEAD_ORIGIN) or b""
    group = headers.get(DEAD_GROUP)
    text = plain(group) if group is not None else None
    try:
        topic = TopicName.parse(named.partition(b"/")[0].decode())
        origin = None if text is None else dead_origin(headers, topic, text)
        if origin is None or text is None:
            return None
        MessageId.parse(origin.id)
    except (TMSError, UnicodeDecodeError):
        return None
    at = path_of("messages", topic.namespace, topic.topic, origin.partition, origin.id)
    mended = segment(f"{text}/{row.partition}:{row.id}")
    mend = f"{path_of('publish', topic.namespace, topic.topic)}?mends={mended}"
    return _DeadLetter(topic, text, origin, at, mend)


_MESSAGE = "/console/messages/{namespace}/{topic}/{partition}/{id}"
ROUTES = (
    PageRoute("GET", _MESSAGE, show_message),
    PageRoute("GET", f"{_MESSAGE}/file", save),
    PageRoute("GET", f"{_MESSAGE}/erase", ask_to_erase),
    PageRoute("POST", f"{_MESSAGE}/erase", erase),
)
