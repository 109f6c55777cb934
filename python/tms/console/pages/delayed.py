"""Delayed messages: the topics that have some, those of one topic, and cancelling some of them."""

from collections.abc import Sequence
from typing import NamedTuple

from tms.console.pages.lists import page_of
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
from tms.errors import Invalid, TMSError
from tms.model.access import Access
from tms.model.delayed import DelayedId, DelayedMessage
from tms.model.topic import DEFAULT_NAMESPACE, TopicName

SHOWN = 50
SHOWN_MAX = 200
CHOSEN_MAX = 200  # messages that are cancelled together
KEY_CHARS = 200


class DelayedRow(NamedTuple):
    """A delayed message in a table. `size`: of key, value and headers in bytes."""

    id: DelayedId
    partition: int
    key: str | None
    is_text: bool
    size: int


async def show_topics(visit: Visit) -> PageAnswer:
    """The topics of a namespace that have delayed messages."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    listing = await page_of(
        visit, "glance.delayed", namespace, lambda one: TopicName.parse(one.topic).topic
    )
    return WebPage("delayed.html", {"namespace": namespace, "listing": listing})


async def show_messages(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The delayed messages of a topic, in the order in which they are due."""
    name = TopicName.of(namespace, topic)
    limit = visit.number("limit", SHOWN, 1, SHOWN_MAX)
    after = DelayedId.parse(visit.asked("after")) if visit.asked("after") else None
    page = await visit.ask("delayed.page", name=name, after=after, limit=limit + 1)
    shown = page.messages[:limit]
    goes_on = len(page.messages) > limit
    if shown and not goes_on:  # large messages make a page shorter
        rest = await visit.ask("delayed.page", name=name, after=shown[-1].id, limit=1)
        goes_on = bool(rest.messages)
    values = {
        "name": name,
        "page": page,
        "rows": [_row(one) for one in shown],
        "next": visit.address(after=shown[-1].id) if goes_on else "",
        "first": visit.address(after=None) if after else "",
        "may_cancel": visit.may(Access.PUBLISH, f"topic:{namespace}:{topic}"),
    }
    return WebPage("delayed_topic.html", values)


async def ask_to_cancel(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The messages that a visitor has chosen, and which of them still wait."""
    name = TopicName.of(namespace, topic)
    ids = _ids(visit.query.get("id", ()))
    before = DelayedId(max(0, ids[0].due_ms - 1), 0)
    page = await visit.ask("delayed.page", name=name, after=before, limit=1_000)
    waiting = {one.id: _row(one) for one in page.messages}
    # One page may not reach to the last of them.
    reached = page.messages[-1].id if len(page.messages) else ids[-1]
    values = {
        "name": name,
        "rows": [waiting[one] for one in ids if one in waiting],
        "later": [one for one in ids if one not in waiting and one > reached],
        "gone": [one for one in ids if one not in waiting and one <= reached],
        "ids": ids,
        "may_cancel": visit.may(Access.PUBLISH, f"topic:{namespace}:{topic}"),
        "same": visit.same_as(
            ["delayed", "cancel", str(name), *map(str, ids)],
            visit.question("delayed.cancel", {"name": name, "id": ids[0]}),
        ),
    }
    return WebPage("delayed_cancel.html", values)


async def cancel(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Cancel messages; those that are delivered already stay."""
    name = TopicName.of(namespace, topic)
    ids = _ids(visit.fields.get("id", ()))
    outcomes: list[bool] = []
    back = path_of("delayed", *name)
    for id in ids:
        try:
            outcomes.append(await visit.ask("delayed.cancel", name=name, id=id))
        except TMSError as error:
            if not outcomes:
                raise
            done = counted(sum(outcomes), "message")
            text = f"Cancelled {done} of {len(ids)}, then: {error.message} The others stay."
            return Redirect(back, Notice(text, PROBLEM))
    late = len(ids) - sum(outcomes)
    text = f"Cancelled {counted(sum(outcomes), 'message')} of {name}."
    if late:
        text += f" Delivered or cancelled before: {late}."
    return Redirect(back, Notice(text, DONE))


def _ids(texts: Sequence[str]) -> list[DelayedId]:
    """The chosen messages, in order. Raises `Invalid`."""
    ids = sorted({DelayedId.parse(text) for text in texts})
    if not 0 < len(ids) <= CHOSEN_MAX:
        raise Invalid(f"Choose 1 to {CHOSEN_MAX} messages, got {len(ids)}.", field="id")
    return ids


def _row(message: DelayedMessage) -> DelayedRow:
    key = None
    is_text = True
    if message.key is not None:
        try:
            key = message.key.decode()
        except UnicodeDecodeError:
            is_text = False
            key = message.key[:KEY_CHARS].hex(" ")
    headers = sum(len(name.encode()) + len(value or b"") for name, value in message.headers.items())
    size = len(message.key or b"") + len(message.value or b"") + headers
    cut = None if key is None else key[:KEY_CHARS] + ("…" if len(key) > KEY_CHARS else "")
    return DelayedRow(message.id, message.partition, cut, is_text, size)


_TOPIC = "/console/delayed/{namespace}/{topic}"
ROUTES = (
    PageRoute("GET", "/console/delayed", show_topics),
    PageRoute("GET", _TOPIC, show_messages),
    PageRoute("GET", f"{_TOPIC}/cancel", ask_to_cancel),
    PageRoute("POST", f"{_TOPIC}/cancel", cancel),
)
