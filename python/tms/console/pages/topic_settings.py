"""Creating a topic, and changing the settings of one.

    form ─▶ what it would do, the command ─▶ the same form, confirmed ─▶ done

* A change applies to the settings that its form has shown: if they have changed meanwhile, it is
  refused. Only settings that differ are sent.
* A change that makes messages unreadable says how many, and takes the topic's name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tms.api import routes
from tms.console.visit import DONE, Notice, PageAnswer, PageRoute, Redirect, Visit, WebPage, path_of
from tms.errors import Conflict, FewerPartitions, Invalid, TMSError, TopicExists
from tms.model.access import Access
from tms.model.keys import Partitioner
from tms.model.position import Position
from tms.model.quantity import duration_text, size_of, size_text
from tms.model.topic import (
    DEFAULT_NAMESPACE,
    RETENTION_DEFAULT,
    Cleanup,
    Durability,
    TopicInfo,
    TopicName,
    TopicSettings,
    parse_durability,
    parse_retention,
)

FOREVER = "forever"
UNLIMITED = "unlimited"
NAME = "topic"


class SettingField(NamedTuple):
    """A field of the form. `choices`: all that may be given; empty: any text."""

    name: str
    label: str
    hint: str
    choices: Sequence[str] = ()
    is_fixed: bool = False  # once the topic exists


FIELDS = (
    SettingField("partitions", "Partitions", "1 to 1,024; their number can only grow"),
    SettingField("retention", "Retention", "36h, 14d, forever; default is the store's"),
    SettingField("retention_bytes", "Retained bytes per partition", "1G, unlimited"),
    SettingField("durability", "Durability", "of publishes that name none", [*Durability]),
    SettingField("cleanup", "Cleanup", "compact keeps the newest of each key", [*Cleanup]),
    SettingField("tombstone_retention", "Tombstones stay", "at least, under compaction: 24h"),
    SettingField("message_bytes_max", "Largest message", "up to 8M"),
    SettingField(
        "partitioner",
        "Keys select partitions by",
        "murmur2 as Kafka's clients; fixed for good",
        [*Partitioner],
        is_fixed=True,
    ),
)


class Effect(NamedTuple):
    """A consequence of a change. `loses`: messages become unreadable for good."""

    text: str
    loses: bool = False


def texts_of(settings: TopicSettings) -> dict[str, str]:
    """Settings as the form and the command line have them."""
    limit = settings.retention_bytes
    retention = _duration(settings.retention_ms)
    return {
        "partitions": str(settings.partitions),
        "retention": RETENTION_DEFAULT if settings.retention_is_default else retention,
        "retention_bytes": UNLIMITED if limit is None else size_text(limit),
        "durability": settings.durability.value,
        "cleanup": settings.cleanup.value,
        "tombstone_retention": _duration(settings.tombstone_retention_ms),
        "message_bytes_max": size_text(settings.message_bytes_max),
        "partitioner": settings.partitioner.value,
    }


def _duration(ms: int | None) -> str:
    return FOREVER if ms is None else duration_text(ms)


_NEW = texts_of(TopicSettings(retention_is_default=True))


def setting_of(name: str, text: str) -> dict[str, Any]:
    """The fields of `TopicSettings` that a field of the form stands for. Raises `Invalid`."""
    text = text.strip()
    match name:
        case "partitions":
            if not (text.isascii() and text.isdigit()):
                raise Invalid(f"partitions is a whole number, got {text!r:.40}.", field=name)
            return {name: int(text[:20])}
        case "retention" if text == RETENTION_DEFAULT:
            return {"retention_is_default": True}
        case "retention" | "tombstone_retention":
            return {f"{name}_ms": parse_retention(text, name)}
        case "retention_bytes" if text == UNLIMITED:
            return {name: None}
        case "retention_bytes" | "message_bytes_max":
            return {name: size_of(name, text)}
    return {name: text}


def settings_in(texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of `TopicSettings` in these texts, and by field the fault of each wrong one."""
    found: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, text in texts.items():
        try:
            fields = setting_of(name, text)
            TopicSettings(**fields)  # each by itself: all faults are found at once
            found |= fields
        except Invalid as error:
            faults[name] = error.message
    return found, faults


# -- a new topic -----------------------------------------------------------------------------------


async def show_new(visit: Visit) -> PageAnswer:
    """The form of a new topic; the address may fill it in."""
    texts = {one.name: visit.asked(one.name, _NEW[one.name]) for one in FIELDS}
    place = visit.asked("namespace", DEFAULT_NAMESPACE), visit.asked(NAME)
    return _new_page(visit, place, texts, {})


async def create(visit: Visit) -> PageAnswer:
    """Create a topic, or show how a shell does it."""
    texts = {one.name: visit.given(one.name, _NEW[one.name]) for one in FIELDS}
    place = visit.given("namespace", DEFAULT_NAMESPACE).strip(), visit.given(NAME).strip()
    found, faults = settings_in(texts)
    try:
        name = TopicName.of(*place)
    except Invalid as error:
        faults[NAME] = error.message
    if faults or visit.given("do") != "create":
        return _new_page(visit, place, texts, faults)
    try:
        await visit.ask("topics.create_topic", name=name, settings=TopicSettings(**found))
    except TMSError as error:
        return _new_page(visit, place, texts, _faults_of(error), error)
    return Redirect(path_of("topics", *name), Notice(f"The topic {name} was created.", DONE))


def _new_page(
    visit: Visit,
    place: tuple[str, str],
    texts: Mapping[str, str],
    faults: Mapping[str, str],
    error: TMSError | None = None,
) -> WebPage:
    found, wrong = settings_in(texts)
    same = None
    if place[1] and not faults and not wrong:
        name = TopicName.of(*place)
        settings = TopicSettings(**found)
        options = _options({one: text for one, text in texts.items() if text != _NEW[one]})
        question = visit.question("topics.create_topic", {"name": name, "settings": settings})
        same = visit.same_as(["topic", "create", str(name), *options], question)
    values = {
        "namespace": place[0],
        "topic": place[1],
        "fields": FIELDS,
        "texts": texts,
        "faults": faults,
        "error": None if faults else error,
        "same": same,
        "may_create": visit.may_some(Access.MANAGE, place[0]),
    }
    return WebPage("topic_new.html", values, _status(faults, error))


# -- changes ---------------------------------------------------------------------------------------


async def show_settings(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """The form of a topic's settings."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    return await _settings_page(visit, info, texts_of(info.settings), {})


async def change(visit: Visit, namespace: str, topic: str) -> PageAnswer:
    """Show what a change does, or make it once it is confirmed."""
    name = TopicName.of(namespace, topic)
    info = await visit.ask("topics.describe_topic", name=name)
    now = texts_of(info.settings)
    texts = {one: visit.given(one, text) for one, text in now.items()}
    differing = {one: text for one, text in texts.items() if text.strip() != now[one]}
    changes, faults = settings_in(differing)
    if faults or visit.given("do") != "change" or not changes:
        return await _settings_page(visit, info, texts, faults)
    if visit.given("seen") != _seen(info):
        raise Conflict(
            f"The settings of {name} have changed since this form was shown. Nothing was changed "
            "now. Open the form again."
        )
    if any(one.loses for one in await _effects(visit, info, changes)):
        visit.require_typed(str(name))
    try:
        await visit.ask("topics.update_topic", name=name, changes=changes)
    except TMSError as error:
        return await _settings_page(visit, info, texts, _faults_of(error), error)
    changed = ", ".join(f"{one} {text}" for one, text in differing.items())
    return Redirect(path_of("topics", *name), Notice(f"{name} has now: {changed}.", DONE))


async def _settings_page(
    visit: Visit,
    info: TopicInfo,
    texts: Mapping[str, str],
    faults: Mapping[str, str],
    error: TMSError | None = None,
) -> WebPage:
    now = texts_of(info.settings)
    differing = {one: text for one, text in texts.items() if text.strip() != now[one]}
    changes, _ = settings_in(differing)
    effects: Sequence[Effect] = ()
    same = None
    if changes and not faults:
        effects = await _effects(visit, info, changes)
        question = visit.question("topics.update_topic", {"name": info.name, "changes": changes})
        command = ["topic", "update", str(info.name), *_options(differing)]
        same = visit.same_as(command, question)
    values = {
        "name": info.name,
        "fields": FIELDS,
        "texts": texts,
        "now": now,
        "faults": faults,
        "error": None if faults else error,
        "differing": differing,
        "effects": effects,
        "loses": any(one.loses for one in effects),
        "seen": _seen(info),
        "same": same,
        "may_manage": visit.may(Access.MANAGE, _resource(info.name)),
    }
    return WebPage("topic_settings.html", values, _status(faults, error))


async def _effects(visit: Visit, info: TopicInfo, changes: Mapping[str, Any]) -> list[Effect]:
    """Everything that a change does beyond the setting itself."""
    old = info.settings
    effects: list[Effect] = []
    partitions = changes.get("partitions", old.partitions)
    if partitions > old.partitions:
        effects.append(
            Effect(
                f"The topic gets {partitions - old.partitions} more partitions, which cannot be "
                "taken away. New messages of many keys go to another partition than their earlier "
                "ones: the order of a key holds within each of both. Groups divide all partitions "
                "among their members anew."
            )
        )
    effects += await _expiring(visit, info, changes)
    limit = changes.get("retention_bytes")
    over = [max(0, one.stored_bytes - (limit or 0)) for one in info.partition_infos]
    if limit is not None and any(over):
        effects.append(
            Effect(
                f"{sum(map(bool, over))} partitions have more than {size_text(limit)}: about "
                f"{sum(over):,} bytes of their oldest messages will be dropped for good.",
                loses=True,
            )
        )
    cleanup = Cleanup(changes.get("cleanup", old.cleanup))
    if cleanup.compacts and not old.cleanup.compacts:
        effects.append(
            Effect(
                "Compaction will remove every message that has a newer message of its key, for "
                "good. Messages without a key stay, unless retention drops them.",
                loses=True,
            )
        )
    durability = parse_durability(changes.get("durability", old.durability))
    if durability.rank < old.durability.rank:
        failure = "a loss of power" if durability is Durability.WRITTEN else "a crash"
        effects.append(Effect(f"Messages published from now on may be lost by {failure}."))
    return effects


async def _expiring(visit: Visit, info: TopicInfo, changes: Mapping[str, Any]) -> list[Effect]:
    """The messages that a shorter retention makes unreadable."""
    old_ms = info.settings.retention_ms
    new_ms = changes.get("retention_ms")
    if changes.get("retention_is_default"):
        return [Effect("The store's default retention applies: older messages expire.", loses=True)]
    if new_ms is None or (old_ms is not None and new_ms >= old_ms):
        return []
    at = Position.time(max(0, visit.now_ms - new_ms))
    offsets = await visit.ask("topics.offsets", name=info.name, at=at)
    gone = sum(max(0, offsets[one.partition] - one.start_offset) for one in info.partition_infos)
    held = sum(one.end_offset - one.start_offset for one in info.partition_infos)
    return [
        Effect(
            f"{gone:,} of {held:,} messages are older than {duration_text(new_ms)}: they become "
            "unreadable at once, and their space is reclaimed.",
            loses=gone > 0,
        )
    ]


def _options(texts: Mapping[str, str]) -> list[str]:
    """Options of `tms topic create` and `update`."""
    named = ((f"--{name.replace('_', '-')}", text.strip()) for name, text in texts.items())
    return [word for option in named for word in option]


def _faults_of(error: TMSError) -> dict[str, str]:
    """The error by the field that it is about; empty if it is about none."""
    field = str(error.details.get("field", "")).removesuffix("_ms")
    if isinstance(error, FewerPartitions):
        field = "partitions"
    elif isinstance(error, TopicExists):
        field = NAME
    return {field: error.message} if field in {NAME, *_NEW} else {}


def _status(faults: Mapping[str, str], error: TMSError | None) -> int:
    if error is not None:
        return routes.status_of(error)
    return routes.status_of(Invalid("")) if faults else routes.OK


def _seen(info: TopicInfo) -> str:
    """The settings that a form has shown, and of which generation of the topic."""
    texts = {"generation": str(info.generation), **texts_of(info.settings)}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def _resource(name: TopicName) -> str:
    return f"topic:{name.namespace}:{name.topic}"


_SETTINGS = "/console/topics/{namespace}/{topic}/settings"
ROUTES = (
    PageRoute("GET", "/console/topics/new", show_new),
    PageRoute("POST", "/console/topics/new", create),
    PageRoute("GET", _SETTINGS, show_settings),
    PageRoute("POST", _SETTINGS, change),
)
