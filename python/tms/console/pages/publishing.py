"""Publish a message: one that is written, or one again that was edited."""

import shlex
from base64 import b64encode

from tms.api import bodies, routes
from tms.api.bodies import MessageIn, PublishBody
from tms.api.messages import JsonMessage, as_text
from tms.console.cells import plain
from tms.console.commands import SameAs
from tms.console.pages.dead_letters import MendedLetter, own_headers
from tms.console.pages.message import AGAIN_BYTES_MAX, cells_of, found_message
from tms.console.pages.publish_forms import (
    KEY_FORMS,
    VALUE_FORMS,
    PublishForm,
    WrittenMessage,
)
from tms.console.rendering import time
from tms.console.visit import (
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import (
    IdempotencyKeyReused,
    Invalid,
    PartitionNotFound,
    TMSError,
    TooLarge,
    Unauthenticated,
)
from tms.model.access import Access
from tms.model.ids import utc
from tms.model.topic import Durability, TopicName
from tms.server.asking import AskedOperation

SHOWN_BYTES_MAX = 16 << 10  # of a body beside the form
SHOWN_FIELDS = frozenset(PublishForm._fields) - {"once"}
_DELIMITER = "::"
_NO_COMMAND = "# tms publish takes a message from a line of text; this one takes a request:"
_SENT_BEFORE = (
    "This form was sent before with other contents, which may be stored. It has a new id now: send "
    "it again to publish these, too."
)


async def show_form(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The form in which a message is written; with `again`, that of a message; with `mends`, that
    of a dead letter, which is settled once its message is published."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    form = PublishForm()
    message = None
    origin = ""
    mends = visit.asked("mends")
    if mends:
        letter = await MendedLetter.of(visit, name, mends)
        message = await letter.message(visit)
        origin = str(letter.origin(message).partition)
    elif again := visit.asked("again"):
        partition, _, id = again.partition(":")
        message = await found_message(visit, name, partition, id)
    if message is not None:
        cells = cells_of(message)
        cells = *cells[:2], own_headers(cells[2]) if mends else cells[2]
        if sum(len(cell or b"") for cell in cells[:2]) > AGAIN_BYTES_MAX:
            raise TooLarge(
                f"A form holds up to {AGAIN_BYTES_MAX >> 20} MiB of a message, and this one has "
                "more: download its value, edit it, and publish it by `tms publish`."
            )
        event_time_ms = message.event_time_ms
        form = PublishForm.of(cells, event_time_ms if isinstance(event_time_ms, int) else None)
        form = form._replace(partition=origin)
    return _page(visit, name, form.renewed(), partitions=info.settings.partitions)


async def publish(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Publish the message of a form, or show the command that does."""
    name = TopicName.of(namespace, topic)
    form = PublishForm.sent(visit)
    try:
        message = form.message()
        question = _question(visit, name, message, form.once)
        if visit.given("do") == "show":
            return _page(visit, name, form, same=_same_as(visit, name, message, question))
        letter = None
        if mends := visit.given("mends"):
            letter = await MendedLetter.of(visit, name, mends)
            await letter.require_open(visit)
        places = (await visit.put(question)).messages
    except Unauthenticated:
        raise
    except IdempotencyKeyReused:
        return _page(visit, name, form.renewed(), Invalid(_SENT_BEFORE))
    except TMSError as error:
        has_id = error.details.get("field") != "once"
        return _page(visit, name, form if has_id else form.renewed(), error)
    if letter is not None:
        back = path_of("queues", namespace, topic, letter.info.group, "dead")
        return Redirect(back, await letter.settle(visit))
    (place,) = places
    if message.delivery.is_later:
        return Redirect(
            path_of("delayed", namespace, topic),
            Notice(f"The message {place.id} waits until {time(place.deliver_at_ms)}."),
        )
    if place.id is None:
        done = Notice(f"Sent to partition {place.partition}; it was not waited for.")
        return Redirect(path_of("messages", namespace, topic), done)
    done = Notice(f"Published to partition {place.partition} at offset {place.offset}: {place.id}.")
    if not visit.may(Access.CONSUME, f"topic:{namespace}:{topic}"):
        return Redirect(path_of("publish", namespace, topic), done)
    return Redirect(path_of("messages", namespace, topic, place.partition, place.id), done)


def _page(
    visit: Visit,
    name: TopicName,
    form: PublishForm,
    error: TMSError | None = None,
    partitions: int = 0,
    same: SameAs | None = None,
) -> WebPage:
    resource = f"topic:{name.namespace}:{name.topic}"
    field = ""
    if error is not None:
        field = error.details.get("field") or ""
        field = "partition" if isinstance(error, PartitionNotFound) else field
        field = "value" if isinstance(error, TooLarge) else field
    values = {
        "name": name,
        "fields": form,
        "partitions": partitions,
        "key_forms": KEY_FORMS,
        "value_forms": VALUE_FORMS,
        "durabilities": [one.value for one in Durability],
        "resource": resource,
        "may_publish": visit.may(Access.PUBLISH, resource),
        "mends": visit.given("mends") or visit.asked("mends"),
        "error": error,
        "error_field": field if field in SHOWN_FIELDS else "",
        "same": same,
    }
    return WebPage("publish.html", values, 200 if error is None else routes.status_of(error))


def _question(visit: Visit, name: TopicName, message: WrittenMessage, once: str) -> AskedOperation:
    """The request that publishes a message once, by this id."""
    shown = _encoded(message)
    new = MessageIn(
        value=shown.value,
        key=shown.key,
        headers=shown.headers or None,
        partition=message.partition,
        encoding=shown.encoding,
        event_time_ms=message.event_time_ms,
    )
    delivery = message.delivery
    arguments = {"name": name, "durability": message.durability}
    if delivery.is_later:
        arguments |= delivery._asdict()
    return visit.question(
        "delayed.publish" if delivery.is_later else "publish",
        arguments,
        body=bodies.encode(PublishBody([new])),
        headers={b"idempotency-key": once.encode()},
    )


def _encoded(message: WrittenMessage) -> JsonMessage:
    """Key, value and headers as JSON has them: as base64 if a text could not be copied."""
    cells = (message.key, message.value, *message.headers.values())
    if all(cell is None or plain(cell) is not None for cell in cells):
        return as_text(message.key, message.value, message.headers)
    key, value, *headers = (None if cell is None else b64encode(cell).decode() for cell in cells)
    return JsonMessage(key, value, dict(zip(message.headers, headers, strict=True)), "base64")


def _same_as(
    visit: Visit, name: TopicName, message: WrittenMessage, question: AskedOperation
) -> SameAs:
    """The command and the request that publish a message; a long body is named as a file."""
    if len(question.payload) > SHOWN_BYTES_MAX:
        question = question._replace(body=b"@message.json")
    line = _line(message)
    command = ["publish", str(name), *_options(message)]
    same = visit.same_as(command, question)
    if line is None:
        return same._replace(command=_NO_COMMAND)
    return same._replace(command=f"printf '%s\\n' {shlex.quote(line)} | {same.command}")


def _line(message: WrittenMessage) -> str | None:
    """The line from which `tms publish` makes this message; None if there is none."""
    value = None if message.value is None else plain(message.value)
    key = "" if message.key is None else plain(message.key)
    headers = message.headers.items()
    are_text = all("=" not in name and cell is not None and plain(cell) for name, cell in headers)
    if value is None or key is None or not are_text or len(value) > SHOWN_BYTES_MAX:
        return None
    if "\n" in value + key or _DELIMITER in key:
        return None
    return value if message.key is None else f"{key}{_DELIMITER}{value}"


def _options(message: WrittenMessage) -> list[str]:
    """The options of `tms publish` for a message."""
    options = [] if message.key is None else ["--key-delim", _DELIMITER]
    for name, cell in message.headers.items():
        options += ["--header", f"{name}={(cell or b'').decode(errors='replace')}"]
    delivery = message.delivery
    if message.partition is not None:
        options += ["--partition", str(message.partition)]
    if message.event_time_ms is not None:
        options += ["--event-time", _utc(message.event_time_ms)]
    if message.durability is not None:
        options += ["--durability", message.durability]
    if delivery.delay_s is not None:
        options += ["--delay", f"{delivery.delay_s:g}s"]
    if delivery.deliver_at_ms is not None:
        options += ["--deliver-at", _utc(delivery.deliver_at_ms)]
    return options


def _utc(time_ms: int) -> str:
    return utc(time_ms).isoformat(timespec="milliseconds")


_PUBLISH = "/console/publish/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", _PUBLISH, show_form),
    PageRoute("POST", _PUBLISH, publish),
)
