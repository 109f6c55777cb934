"""Removing what a topic has: messages before a position, those of a key, or all of it.

* Each page says with numbers what will be gone before it takes the topic's name.
* A form is about the generation of the topic that it has shown, and a truncation removes exactly
  what it has shown: a form that is sent twice, or late, removes nothing else.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tms.api.erasing import erase_body
from tms.console.pages.topics import held
from tms.console.rendering import counted
from tms.console.visit import (
    DONE,
    PROBLEM,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import Conflict, Invalid, OffsetOutOfRange, TMSError
from tms.model.access import Access
from tms.model.ids import MessageId
from tms.model.position import Position, PositionKind
from tms.model.topic import PartitionInfo, TopicInfo, TopicName

LOOKED_BYTES = 1 << 20  # of messages with a key that are counted before they are erased
LOOKED_MAX = 10_000
KEY_BASE64 = "base64"  # how a key is given, in place of text


def _resource(name: TopicName) -> str:
    return f"topic:{name.namespace}:{name.topic}"


# -- truncating ------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """The readable messages of a partition that a truncation removes: offsets `start` to `stop`."""

    partition: int
    start: int
    stop: int
    end: int


async def show_truncation(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The form of a truncation; once a position is chosen, with numbers."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    return await _truncation_page(visit, info, visit.asked("before"), visit.asked("partition"))


async def truncate(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Truncate a topic whose name was typed, up to the offsets that the form has shown."""
    info = await _confirmed(visit, TopicName.of(namespace, topic))
    stops = _stops(visit.fields.get("stop", ()))
    starts = {one.partition: one.start_offset for one in info.partition_infos}
    gone = 0
    for partition, stop in stops.items():
        before = Position.offset(stop)
        asked = {"name": info.name, "before": before, "partition": partition}
        try:
            await visit.ask("topics.truncate_topic", **asked)
        except TMSError as error:
            if not gone:
                raise
            text = f"Removed {counted(gone, 'message')}, then: {error.message} Repeat it."
            return Redirect(path_of("topics", *info.name), Notice(text, PROBLEM))
        gone += max(0, stop - starts.get(partition, 0))
    text = f"Removed {counted(gone, 'message')} of {info.name}."
    return Redirect(path_of("topics", *info.name), Notice(text, DONE))


def _stops(texts: Sequence[str]) -> dict[int, int]:
    """The offsets before which a form removes messages, by partition. Raises `Invalid`."""
    stops: dict[int, int] = {}
    for text in texts:
        partition, _, stop = text.partition(":")
        if not all(one.isascii() and one.isdigit() and len(one) <= 19 for one in (partition, stop)):
            raise Invalid(f"stop is PARTITION:OFFSET, got {text!r:.60}.", field="stop")
        stops[int(partition)] = int(stop)
    return stops


async def _confirmed(visit: Visit, name: TopicName) -> TopicInfo:
    """The topic whose name was typed, if it is still of the generation that the form has shown.
    Raises `Invalid`, `Conflict`."""
    visit.require_typed(str(name))
    info: TopicInfo = await visit.ask("topics.describe_topic", name=name)
    if visit.given("generation") != str(info.generation):
        raise Conflict(
            f"The topic {name} was deleted and created anew since this form was shown. Nothing was "
            "changed. Open the form again."
        )
    return info


async def _truncation_page(
    visit: Visit, info: TopicInfo, before_text: str, partition_text: str
) -> WebPage:
    name = info.name
    values: dict[str, Any] = {
        "name": name,
        "info": info,
        "before": before_text,
        "partition": partition_text,
        "cuts": None,
        "fault": None,
        "may_manage": visit.may(Access.MANAGE, _resource(name)),
    }
    if not before_text:
        return WebPage("topic_truncate.html", values)
    try:
        before = position_in(before_text)
        partition = _partition(partition_text)
        cuts = await _cuts(visit, info, before, partition)
    except (Invalid, OffsetOutOfRange) as error:
        return WebPage("topic_truncate.html", values | {"fault": error}, 422)
    command = ["topic", "truncate", str(name), "--before", str(before)]
    asked = {"name": name, "before": before, "partition": partition}
    command += [] if partition is None else ["--partition", str(partition)]
    values |= {
        "cuts": cuts,
        "total": sum(one.stop - one.start for one in cuts),
        "moves": before.kind in (PositionKind.LATEST, PositionKind.TIME),
        "same": visit.same_as([*command, "--yes"], visit.question("topics.truncate_topic", asked)),
    }
    return WebPage("topic_truncate.html", values)


async def _cuts(
    visit: Visit, info: TopicInfo, before: Position, partition: int | None
) -> list[Cut]:
    """The messages that a truncation removes, by partition. Raises `Invalid`."""
    parts = [one for one in info.partition_infos if partition in (None, one.partition)]
    if not parts:
        raise Invalid(f"The topic {info.name} has no partition {partition}.", field="partition")
    stops: Mapping[int, int] = {}
    if before.kind is not PositionKind.OFFSET:
        asked = {"name": info.name, "at": before, "isolation": "uncommitted"}
        stops = await visit.ask("topics.offsets", **asked)
    return [_cut(one, stops.get(one.partition, before.number)) for one in parts]


def _cut(info: PartitionInfo, stop: int) -> Cut:
    within = min(max(stop, info.start_offset), info.end_offset)
    return Cut(info.partition, info.start_offset, within, info.end_offset)


def position_in(text: str) -> Position:
    """A position as `Position.parse` reads it, or a time such as `2026-11-28 10:00:00Z`. Raises
    `Invalid`."""
    text = text.strip()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return Position.parse(text)
        except TMSError as exc:
            raise Invalid(
                "A position is latest, offset:5000, a time such as 2026-11-28 10:00:00Z, time:MS, "
                f"or the id of a message, got {text!r:.60}.",
                field="before",
            ) from exc
    if at.tzinfo is None:
        raise Invalid(
            f"A time names its zone, such as 2026-11-28 10:00:00Z, got {text!r:.40}.",
            field="before",
        )
    return Position.time(round(at.timestamp() * 1_000))


def _partition(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise Invalid(f"A partition is a number, got {text!r:.40}.", field="partition")
    return int(text)


# -- erasing ---------------------------------------------------------------------------------------


class Erasure(NamedTuple):
    """The messages to erase: those of a key, or one by its id and partition."""

    key: bytes | None
    id: MessageId | None
    partition: int | None


async def show_erasure(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The form of an erasure; once a key or an id is chosen, with numbers."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    given = {one: visit.asked(one) for one in ("key", "as", "id", "partition")}
    values: dict[str, Any] = {
        "name": name,
        "info": info,
        "given": given,
        "wanted": None,
        "fault": None,
        "found": None,
        "may_manage": visit.may(Access.MANAGE, _resource(name)),
    }
    if not given["key"] and not given["id"]:
        return WebPage("topic_erase.html", values)
    try:
        wanted = _erasure(given)
    except TMSError as error:
        return WebPage("topic_erase.html", values | {"fault": error}, 422)
    values["wanted"] = wanted
    if wanted.key is not None:
        values["found"], values["found_error"] = await _found(visit, name, wanted)
    command = ["topic", "erase", str(name), *_options(given, wanted), "--yes"]
    values["same"] = visit.same_as(command, _question(visit, name, wanted))
    return WebPage("topic_erase.html", values)


async def erase(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Erase messages of a topic whose name was typed."""
    name = (await _confirmed(visit, TopicName.of(namespace, topic))).name
    given = {one: visit.given(one) for one in ("key", "as", "id", "partition")}
    erased = await visit.put(_question(visit, name, _erasure(given)))
    text = f"Erased {counted(erased.erased, 'message')} of {name} for good."
    return Redirect(path_of("topics", *name), Notice(text, DONE))


def _question(visit: Visit, name: TopicName, wanted: Erasure) -> Any:
    return visit.question("topics.erase", {"name": name}, body=erase_body(*wanted))


def _erasure(given: Mapping[str, str]) -> Erasure:
    """The messages that a form names. Raises `Invalid`, `BadMessageId`."""
    partition = _partition(given["partition"])
    if given["id"]:
        if given["key"] or partition is None:
            raise Invalid("Give a key, or an id with its partition.", field="id")
        return Erasure(None, MessageId.parse(given["id"].strip()), partition)
    if given["as"] != KEY_BASE64:
        return Erasure(given["key"].encode(), None, partition)
    try:
        return Erasure(base64.b64decode(given["key"], validate=True), None, partition)
    except binascii.Error as exc:
        raise Invalid(f"The key is no base64: {exc}.", field="key") from exc


def _options(given: Mapping[str, str], wanted: Erasure) -> list[str]:
    named = ["--id", str(wanted.id)]
    if wanted.key is not None and given["as"] != KEY_BASE64:
        named = ["--key", given["key"]]
    elif wanted.key is not None:
        named = ["--key-hex", wanted.key.hex()]
    return [*named, *([] if wanted.partition is None else ["--partition", str(wanted.partition)])]


async def _found(
    visit: Visit, name: TopicName, wanted: Erasure
) -> tuple[dict[str, int] | None, TMSError | None]:
    """The messages of a key in the part of the topic that one fetch looks at, and the size of that
    part."""
    assert wanted.key is not None, "an id is one message"
    asked: dict[str, Any] = {"where": f'key = x"{wanted.key.hex()}"', "limit": LOOKED_MAX}
    if wanted.partition is not None:
        asked["start"] = f"{wanted.partition}:earliest"
    asked |= {"name": name, "bytes_max": LOOKED_BYTES}
    fetched, error = await visit.tried_if(Access.CONSUME, _resource(name), "fetch", **asked)
    if fetched is None:
        return None, error
    left = sum(fetched.ends[one] - fetched.reached[one] for one in fetched.ends)
    return {"messages": len(fetched.messages), "left": left}, None


# -- deleting --------------------------------------------------------------------------------------


async def ask_to_delete(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The page on which a visitor confirms that a topic is to be deleted."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    same = visit.same_as(
        ["topic", "delete", str(name), "--yes"],
        visit.question("topics.delete_topic", {"name": name}),
    )
    asked = {"name": name, "limit": 0}
    delayed, _ = await visit.tried_if(Access.CONSUME, _resource(name), "delayed.page", **asked)
    values = {"name": name, "info": info, "held": held(info), "delayed": delayed, "same": same}
    return WebPage("topic_delete.html", values)


async def delete(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Delete a topic whose name was typed."""
    name = (await _confirmed(visit, TopicName.of(namespace, topic))).name
    await visit.ask("topics.delete_topic", name=name)
    back = f"{path_of('topics')}?namespace={namespace}"
    return Redirect(back, Notice(f"The topic {name} was deleted.", DONE))


_TOPIC = "/console/topics/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", f"{_TOPIC}/truncate", show_truncation),
    PageRoute("POST", f"{_TOPIC}/truncate", truncate),
    PageRoute("GET", f"{_TOPIC}/erase", show_erasure),
    PageRoute("POST", f"{_TOPIC}/erase", erase),
    PageRoute("GET", f"{_TOPIC}/delete", ask_to_delete),
    PageRoute("POST", f"{_TOPIC}/delete", delete),
)
