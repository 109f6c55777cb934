"""The queues of a namespace, and one queue: its numbers, its settings, and the messages that wait.

* Settings are changed one by one, and only if they are still those that the form shows.
* A message that was delivered before is rejected or released by the token of that delivery: if a
  worker gets it again first, nothing happens to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from tms.console.pages.groups import place_of
from tms.console.pages.lists import page_of
from tms.console.visit import (
    PROBLEM,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import Conflict, Invalid, TMSError, Unauthenticated
from tms.model.access import Access
from tms.model.queue import (
    PEEK_MAX,
    TOKENS_MAX,
    QueuedState,
    QueueInfo,
    QueueSettings,
    Token,
    check_cause,
)
from tms.model.topic import DEFAULT_NAMESPACE, Durability, TopicName
from tms.runtime.decoding import from_json
from tms.server.asking import AskedOperation

PEEK_DEFAULT = 50
REFUSED = 422
CONFLICT = 409
REJECT = "reject"
RELEASE = "release"
_DONE = {REJECT: "rejected: they become dead letters in a moment", RELEASE: "released"}
_FIXED = ("ordered_by", "start")
DEFAULTS = QueueSettings()
# The names of settings on pages, and the options of `tms queue create`.
LABELS: Mapping[str, tuple[str, str]] = {
    "lease_s": ("Lease, seconds", "--lease"),
    "deliveries_max": ("Deliveries before a message is dead, 0: no limit", "--deliveries-max"),
    "backoff_first_s": ("First pause after a failure, seconds", "--backoff-first"),
    "backoff_max_s": ("Longest pause, seconds", "--backoff-max"),
    "jitter": ("Share by which pauses vary", "--jitter"),
    "dead_letter": ("Topic of the dead letters", "--dead-letter"),
    "outstanding_max": ("Most messages that are not settled", "--outstanding-max"),
    "durability": ("Durability of acknowledgements", "--durability"),
    "ordered_by": ("Order", "--ordered-by"),
    "start": ("Where it began", "--start"),
}


async def show_queues(visit: Visit) -> PageAnswer:
    """The queues of a namespace with their backlog, a page of them."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    listing = await page_of(visit, "glance.queues", namespace, place_of)
    return WebPage("queues.html", {"namespace": namespace, "listing": listing})


async def show_queue(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """A queue: its numbers, its partitions, its settings."""
    name = TopicName.of(namespace, topic)
    info: QueueInfo = await visit.ask("queues.describe", topic=name, group=group)
    own, _ = await visit.tried("topics.describe_topic", name=name)
    resource = _resource(name, group)
    values = {
        "name": name,
        "group": group,
        "info": info,
        "waiting": info.backlog + info.ready + info.delayed + info.blocked,
        "settings": _settings(info, None if own is None else own.settings.durability),
        "at": path_of("queues", namespace, topic, group),
        "may_consume": visit.may(Access.CONSUME, resource),
        "may_manage": visit.may(Access.MANAGE, resource),
        "resource": resource,
    }
    return WebPage("queue.html", values)


def _settings(info: QueueInfo, durability: Durability | None) -> list[tuple[str, str, str]]:
    """The settings as a page shows them: name, value, and where the value comes from."""
    rows = []
    for name, (label, _) in LABELS.items():
        value = getattr(info.settings, name)
        origin = "default" if value == getattr(DEFAULTS, name) else "set for this queue"
        if name == "dead_letter" and not value:
            value = str(info.dead_letter)
            origin = "default: named after topic and group"
        elif name == "durability" and value is None:
            value = durability or "?"
            origin = "the topic's"
        elif name == "ordered_by":
            value = "one message of a key at a time" if value else "none"
        rows.append((label, f"{value:g}" if isinstance(value, float) else str(value), origin))
    return rows


# --- making, changing, deleting ------------------------------------------------------------------


async def show_new(visit: Visit) -> PageAnswer:
    """The form of a new queue."""
    typed = {name: visit.asked(name) for name in ("topic", "group")}
    return _form(visit, typed | _texts(DEFAULTS), is_new=True)


async def declare(visit: Visit) -> PageAnswer:
    """Make a queue, or show what was wrong with its form."""
    typed = {name: visit.given(name) for name in ("topic", "group", *LABELS)}
    try:
        name = TopicName.parse(typed["topic"].strip())
        group = typed["group"].strip()
        chosen = _changed(typed, DEFAULTS)
        settings = QueueSettings.of(chosen)
        question = _declaration(visit, name, group, settings)
        if visit.given("do") == "show":
            words = ["queue", "create", str(name), group, *_options(chosen)]
            return _form(visit, typed, is_new=True, same=visit.same_as(words, question))
        await visit.put(question)
    except Unauthenticated:
        raise
    except TMSError as error:
        return _form(visit, typed, is_new=True, error=error)
    return Redirect(
        path_of("queues", *name, group), Notice(f"The queue {group} of {name} is there.")
    )


async def show_settings(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The form that changes settings of a queue."""
    name = TopicName.of(namespace, topic)
    info: QueueInfo = await visit.ask("queues.describe", topic=name, group=group)
    typed = {"topic": str(name), "group": group}
    return _form(visit, typed | _texts(info.settings), was=info.settings)


async def update(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Change the settings that differ from those that the form was made of."""
    name = TopicName.of(namespace, topic)
    at = {"topic": name, "group": group}
    info: QueueInfo = await visit.ask("queues.describe", **at)
    own = [one for one in LABELS if one not in _FIXED]
    typed = {"topic": str(name), "group": group} | {one: visit.given(one) for one in own}
    try:
        was = from_json(visit.given("was").encode(), dict[str, str])
    except (ValueError, msgspec.MsgspecError) as exc:
        raise Invalid("The form does not say of which settings it was made.", field="was") from exc
    now = _texts(info.settings)
    other = [LABELS[one][0] for one in own if was.get(one) != now[one]]
    if other:
        moved = Conflict(
            f"Nothing was changed: someone else has changed these settings meanwhile: "
            f"{'; '.join(other)}. The form shows the present ones."
        )
        shown = {"topic": str(name), "group": group} | now
        return _form(visit, shown, was=info.settings, error=moved)
    try:
        changes = _changed(typed, info.settings)
        if not changes:
            raise Invalid("Nothing was changed: all settings are as they were.")
        info.settings.changed(changes)
        question = visit.question("queues.update", at | {"changes": changes})
        if visit.given("do") == "show":
            same = visit.same_as(
                ["queue", "update", str(name), group, *_options(changes)], question
            )
            return _form(visit, typed, was=info.settings, same=same)
        await visit.put(question)
    except Unauthenticated:
        raise
    except TMSError as error:
        return _form(visit, typed, was=info.settings, error=error)
    return Redirect(path_of("queues", *name, group), Notice("The settings were changed."))


async def ask_to_delete(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The page on which a visitor confirms that a queue is to be deleted."""
    name = TopicName.of(namespace, topic)
    at = {"topic": name, "group": group}
    info: QueueInfo = await visit.ask("queues.describe", **at)
    same = visit.same_as(["queue", "delete", str(name), group], visit.question("queues.delete", at))
    left = info.backlog + info.ready + info.delayed + info.blocked + info.dying
    values = {"name": name, "group": group, "info": info, "left": left, "same": same}
    return WebPage("queue_delete.html", values)


async def delete(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Delete a queue whose name was typed."""
    name = TopicName.of(namespace, topic)
    visit.require_typed(group)
    await visit.ask("queues.delete", topic=name, group=group)
    back = f"{path_of('queues')}?namespace={namespace}"
    return Redirect(back, Notice(f"The queue {group} of {name} was deleted."))


def _form(
    visit: Visit,
    typed: Mapping[str, str],
    *,
    is_new: bool = False,
    was: QueueSettings | None = None,
    error: TMSError | None = None,
    same: Any = None,
) -> WebPage:
    """The form of settings. `was`: those that it changes."""
    status = 200
    if error is not None:
        status = CONFLICT if isinstance(error, Conflict) else REFUSED
    names = [one for one in LABELS if is_new or one not in _FIXED]
    values = {
        "typed": dict.fromkeys(LABELS, "") | dict(typed),
        "labels": [(name, LABELS[name][0]) for name in names],
        "durabilities": [one.value for one in Durability],
        "is_new": is_new,
        "was": "" if was is None else msgspec.json.encode(_texts(was)).decode(),
        "error": error,
        "fault": "" if error is None else str(error.details.get("field") or ""),
        "same": same,
    }
    return WebPage("queue_settings.html", values, status)


def _texts(settings: QueueSettings) -> dict[str, str]:
    """The settings as the fields of a form have them."""
    texts = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        text = "" if value is None else str(value)
        texts[field.name] = f"{value:g}" if isinstance(value, float) else text
    return texts


def _changed(typed: Mapping[str, str], before: QueueSettings) -> dict[str, Any]:
    """The settings that a form changes. Raises `Invalid`."""
    shown = _texts(before)
    changes: dict[str, Any] = {}
    for name in LABELS:
        text = typed.get(name, shown[name]).strip()
        if text != shown[name]:
            changes[name] = _value(name, text)
    return changes


def _value(name: str, text: str) -> Any:
    default = getattr(DEFAULTS, name)
    if name == "durability":
        return text or None
    if isinstance(default, str):
        return text
    try:
        return type(default)(text)
    except ValueError as exc:
        kind = "whole number" if isinstance(default, int) else "number"
        raise Invalid(f"{LABELS[name][0]}: a {kind}, got {text!r:.40}.", field=name) from exc


def _options(chosen: Mapping[str, Any]) -> list[str]:
    """The options of a command that sets these."""
    options = []
    for name, value in chosen.items():
        if value is None or value == "":
            continue  # the command has no word for the default
        text = f"{value:g}" if isinstance(value, float) else str(value)
        options += [LABELS[name][1], f"{text}s" if name.endswith("_s") else text]
    return options


def _declaration(
    visit: Visit, name: TopicName, group: str, settings: QueueSettings
) -> AskedOperation:
    at = {"topic": name, "group": group, "settings": settings}
    return visit.question("queues.declare", at)


# --- messages that wait --------------------------------------------------------------------------


async def show_waiting(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Messages of a queue that are not settled: who has them until when, and how often they were
    delivered."""
    name = TopicName.of(namespace, topic)
    limit = visit.number("limit", PEEK_DEFAULT, 1, PEEK_MAX)
    at = {"topic": name, "group": group}
    messages = await visit.ask("queues.peek", **at, limit=limit)
    values = {
        "name": name,
        "group": group,
        "messages": messages,
        "limit": limit,
        "states": QueuedState,
        "at": path_of("queues", namespace, topic, group),
        "same": visit.same_as(
            ["queue", "peek", str(name), group, "--limit", str(limit)],
            visit.question("queues.peek", at | {"limit": limit}),
        ),
    }
    return WebPage("queue_waiting.html", values)


async def plan_return(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The page that says what will happen to the chosen messages."""
    name = TopicName.of(namespace, topic)
    info: QueueInfo = await visit.ask("queues.describe", topic=name, group=group)
    do, tokens, cause = _chosen(visit)
    words = ["queue", do, str(name), group, *tokens]
    words += ["--cause", cause] if do == REJECT and cause else []
    values = {
        "name": name,
        "group": group,
        "info": info,
        "do": do,
        "count": len(tokens),
        "tokens": " ".join(tokens),
        "cause": cause,
        "at": path_of("queues", namespace, topic, group),
        "same": visit.same_as(words, _return(visit, name, group, do, tokens, cause)),
    }
    return WebPage("queue_plan.html", values)


async def settle(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Reject or release the messages of a plan."""
    name = TopicName.of(namespace, topic)
    do, tokens, cause = _chosen(visit)
    result = await visit.put(_return(visit, name, group, do, tokens, cause))
    notice = Notice(f"{result.done:,} messages were {_DONE[do]}.")
    if result.fenced:
        late = len(result.fenced)
        text = (
            f"{notice.text} {late:,} were delivered again or settled meanwhile: nothing was done "
        )
        notice = Notice(f"{text}with them.", PROBLEM)
    return Redirect(path_of("queues", namespace, topic, group, "waiting"), notice)


def _chosen(visit: Visit) -> tuple[str, Sequence[str], str]:
    """The action of a form, the tokens that it names, and the cause. Raises `Invalid`."""
    do = visit.given("do")
    if do not in _DONE:
        raise Invalid(f"Messages are rejected or released, got {do!r:.40}.", field="do")
    tokens = [*visit.given("tokens").split(), *visit.fields.get("token", ())]
    if not 0 < len(tokens) <= TOKENS_MAX:
        raise Invalid("No message was chosen. Mark some that were delivered before.")
    for token in tokens:
        Token.parse(token)
    return do, tokens, check_cause(visit.given("cause").strip())


def _return(
    visit: Visit, name: TopicName, group: str, do: str, tokens: Sequence[str], cause: str
) -> AskedOperation:
    at: dict[str, Any] = {"topic": name, "group": group, "tokens": tokens}
    return visit.question(f"queues.{do}", at | ({"cause": cause} if do == REJECT else {}))


def _resource(name: TopicName, group: str) -> str:
    return f"queue:{name.namespace}:{name.topic}/{group}"


_QUEUE = "/console/queues/{namespace}/{topic}/{group}"
ROUTES = (
    PageRoute("GET", "/console/queues", show_queues),
    PageRoute("GET", "/console/queues/new", show_new),
    PageRoute("POST", "/console/queues/new", declare),
    PageRoute("GET", _QUEUE, show_queue),
    PageRoute("GET", f"{_QUEUE}/settings", show_settings),
    PageRoute("POST", f"{_QUEUE}/settings", update),
    PageRoute("GET", f"{_QUEUE}/delete", ask_to_delete),
    PageRoute("POST", f"{_QUEUE}/delete", delete),
    PageRoute("GET", f"{_QUEUE}/waiting", show_waiting),
    PageRoute("POST", f"{_QUEUE}/waiting/plan", plan_return),
    PageRoute("POST", f"{_QUEUE}/waiting/settle", settle),
)
