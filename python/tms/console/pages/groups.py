"""The groups of a namespace, and one group: members, lag, reset.

    plan ─▶ form with the positions that were shown ─▶ move, if they are still the present ones

* A reset changes positions only if they are those of its plan, so that of two people who reset a
  group at the same time one is told. Members move positions all the time: of a group with members
  nothing is expected, and the form says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from tms.api import bodies
from tms.api.commits import MovesBody
from tms.api.parameters import EXPECTED_MAX
from tms.console.pages.hours import charts_of_group
from tms.console.pages.lists import page_of
from tms.console.pages.message_ranges import position_in
from tms.console.visit import Notice, PageAnswer, PageRoute, Redirect, Visit, WebPage, path_of
from tms.errors import (
    BadMessageId,
    Conflict,
    Fenced,
    GroupNotFound,
    Invalid,
    OffsetOutOfRange,
    TMSError,
)
from tms.model.access import Access
from tms.model.group import GroupInfo, GroupKind, GroupSummary
from tms.model.position import Position, PositionKind
from tms.model.queue import dead_letter_topic
from tms.model.reset import PartitionReset, ResetTarget, planned
from tms.model.snapshot import Isolation
from tms.model.topic import DEFAULT_NAMESPACE, TopicInfo, TopicName
from tms.runtime.decoding import from_json
from tms.server.asking import AskedOperation

CONFLICT = 409
LAG_GROUPS_SHOWN = 5  # on a topic's page
LAG_ROWS_SHOWN = 64
PLACES = ("earliest", "latest", "time", "id", "offset", "shift")


class _Move(NamedTuple):
    """A partition of a plan as its form carries it."""

    partition: int
    before: str
    to: str


async def show_groups(visit: Visit) -> PageAnswer:
    """The groups of a namespace with their lag, a page of them."""
    namespace = visit.asked("namespace", DEFAULT_NAMESPACE)
    listing = await page_of(visit, "glance.groups", namespace, place_of)
    return WebPage("groups.html", {"namespace": namespace, "listing": listing})


def place_of(one: Any) -> str:
    """The place of a group or queue in its list."""
    return f"{TopicName.parse(one.topic).topic}/{one.group}"


async def show_group(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """A group: its members, and the position and lag of each partition."""
    name = TopicName.of(namespace, topic)
    info, (bounds, _), (letters, _), (history, history_error) = await asyncio.gather(
        visit.ask("groups.describe", topic=name, group=group),
        visit.tried("topics.describe_topic", name=name),
        visit.tried("topics.describe_topic", name=dead_letter_topic(group, name)),
        visit.tried("history.group", topic=name, group=group),
    )
    ends = {} if bounds is None else {one.partition: one for one in bounds.partition_infos}
    values = {
        "name": name,
        "group": group,
        "info": info,
        "total": info.summary(),
        "ends": ends,
        "history": history,
        "history_error": history_error,
        "charts": [] if history is None else charts_of_group(history),
        "idle": [one.member for one in info.members if not one.partitions],
        "dead": None if letters is None else dead_letter_topic(group, name),
        "may_move": visit.may(Access.CONSUME, _resource(name, group)),
        "may_manage": visit.may(Access.MANAGE, _resource(name, group)),
        "resource": _resource(name, group),
        "at": path_of("groups", namespace, topic, group),
    }
    return WebPage("group.html", values)


class LagTable(NamedTuple):
    """The lag of some groups of a topic in those partitions in which one of them is behind:
    partition and lags, in the order of the groups. `more`: partitions that are left out."""

    groups: Sequence[str]
    rows: Sequence[tuple[int, Sequence[int | None]]]
    more: int


async def lag_table(visit: Visit, name: TopicName, groups: Sequence[GroupSummary]) -> LagTable:
    """The lag by partition of the groups of a topic that are furthest behind."""
    behind = [one.group for one in groups if one.lag != 0]
    described = await asyncio.gather(
        *(
            visit.tried("groups.describe", topic=name, group=one)
            for one in behind[:LAG_GROUPS_SHOWN]
        )
    )
    infos = [info for info, _ in described if info is not None]
    lags: dict[int, list[int | None]] = {}
    for info in infos:
        for one in info.partitions:
            lags.setdefault(one.partition, []).append(one.lag)
    wide = {p: lag for p, lag in lags.items() if len(lag) == len(infos) and any(lag)}
    furthest = sorted(wide, key=lambda p: -sum(one or 0 for one in wide[p]))[:LAG_ROWS_SHOWN]
    rows = [(p, wide[p]) for p in sorted(furthest)]
    return LagTable([info.group for info in infos], rows, len(wide) - len(rows))


# --- reset ---------------------------------------------------------------------------------------


async def plan_reset(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The form of a reset, and, for a place that was chosen, its plan."""
    name = TopicName.of(namespace, topic)
    return WebPage("group_reset.html", await _planned(visit, name, group))


async def reset(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Move the positions of a plan, if they are still those that it shows."""
    name = TopicName.of(namespace, topic)
    visit.require_typed(group)
    moves = _moves(visit)
    is_forced = visit.given("force") == "yes"
    info = await _described(visit, name, group)
    try:
        if info is not None and _members(info) and not is_forced:
            raise Conflict(
                f"The group {group} has members by now, which move its positions. Nothing was "
                "changed. Read below what a reset does then."
            )
        await visit.put(_question(visit, name, group, moves, is_forced))
    except Fenced:
        raise
    except Conflict as error:
        return await _refused(visit, name, group, moves, error)
    done = Notice(f"The group {group} goes on at the new positions in {_partitions(moves)}.")
    return Redirect(path_of("groups", namespace, topic, group), done)


async def _refused(
    visit: Visit, name: TopicName, group: str, moves: Sequence[_Move], error: TMSError
) -> PageAnswer:
    """The page after a reset that did not happen: the positions that have changed, and a new
    plan."""
    info = await _described(visit, name, group)
    now = {} if info is None else {one.partition: one.position or "" for one in info.partitions}
    if all(now.get(one.partition, "") == one.to for one in moves):
        back = path_of("groups", name.namespace, name.topic, group)
        return Redirect(back, Notice(f"The group {group} is at these positions already."))
    changed = [
        (one.partition, one.before, now.get(one.partition, ""))
        for one in moves
        if now.get(one.partition, "") != one.before
    ]
    values = await _planned(visit, name, group)
    return WebPage("group_reset.html", values | {"refusal": error, "changed": changed}, CONFLICT)


async def _planned(visit: Visit, name: TopicName, group: str) -> dict[str, Any]:
    """The values of the page of a reset. A fault of the form is shown on it."""
    bounds, info = await asyncio.gather(
        visit.ask("topics.describe_topic", name=name), _described(visit, name, group)
    )
    values: dict[str, Any] = {
        "name": name,
        "group": group,
        "places": PLACES,
        "info": info,
        "members": 0 if info is None else _members(info),
        "classic": info is not None and info.kind is GroupKind.CLASSIC,
        "partitions": len(bounds.partition_infos),
        "resource": _resource(name, group),
        "may_move": visit.may(Access.CONSUME, _resource(name, group)),
        "plan": [],
        "fault": None,
        "refusal": None,
        "changed": [],
    }
    if not visit.asked("to"):
        return values
    try:
        target = _target(visit)
        chosen = _chosen(visit)
        plan = await _plan(visit, name, target, chosen, bounds, info)
    except (Invalid, BadMessageId, OffsetOutOfRange) as error:
        return values | {"fault": error}
    return values | _shown_plan(visit, name, group, plan, chosen, bool(values["members"]))


def _shown_plan(
    visit: Visit,
    name: TopicName,
    group: str,
    plan: Sequence[PartitionReset],
    chosen: Sequence[int],
    is_forced: bool,
) -> dict[str, Any]:
    moves = [_Move(one.partition, one.before, one.to) for one in plan]
    words = ["group", "reset", str(name), group]
    target = _target(visit)
    words += ["--shift", str(target.shift)] if target.to is None else ["--to", str(target.to)]
    for one in chosen:
        words += ["-p", str(one)]
    words += ["--force"] if is_forced else []
    return {
        "plan": plan,
        "carried": msgspec.json.encode(moves).decode(),
        "again": sum(one.again or 0 for one in plan),
        "skipped": sum(one.skipped or 0 for one in plan),
        "same": visit.same_as(words, _question(visit, name, group, moves, is_forced)),
    }


async def _plan(
    visit: Visit,
    name: TopicName,
    target: ResetTarget,
    chosen: Sequence[int],
    bounds: TopicInfo,
    info: GroupInfo | None,
) -> list[PartitionReset]:
    offsets: Mapping[int, int] = {}
    if target.looked_up is not None:
        asked = {"name": name, "at": target.looked_up, "isolation": Isolation.UNCOMMITTED}
        offsets = await visit.ask("topics.offsets", **asked)
    positions = () if info is None else info.partitions
    return planned(target, bounds.partition_infos, positions, offsets, chosen)


def _target(visit: Visit) -> ResetTarget:
    """The place that the form names. Raises `Invalid`."""
    place = visit.asked("to")
    value = visit.asked("value").strip()
    match place:
        case "earliest" | "latest":
            return ResetTarget(Position.parse(place))
        case "time":
            return ResetTarget(_time(value))
        case "id":
            return ResetTarget(Position.parse(value if ":" in value else f"id:{value}"))
        case "offset":
            return ResetTarget(Position.parse(f"offset:{value}"))
        case "shift":
            digits = value.removeprefix("+").removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
                raise Invalid(
                    f"A shift is a whole number of messages, such as -100, got {value!r:.40}.",
                    field="value",
                )
            return ResetTarget(shift=int(value))
    raise Invalid(f"A group is reset to {', '.join(PLACES)}, got {place!r:.40}.", field="to")


def _time(text: str) -> Position:
    """The position of a time. Raises `Invalid`."""
    with suppress(TMSError):
        at = position_in(text)
        if at.kind is PositionKind.TIME:
            return at
    raise Invalid(
        "A time is like 2026-11-28 10:00 (UTC), 2026-11-28T10:00+01:00, or ms since 1970, got "
        f"{text!r:.40}.",
        field="value",
    )


def _chosen(visit: Visit) -> list[int]:
    """The partitions that the form names; none: all. Raises `Invalid`."""
    parts = [one.strip() for one in visit.asked("partitions").split(",") if one.strip()]
    for one in parts:
        if not (one.isascii() and one.isdigit() and len(one) <= 5):
            raise Invalid(
                f"Partitions are numbers, such as 0,3, got {one!r:.40}.", field="partitions"
            )
    return sorted({int(one) for one in parts})


def _moves(visit: Visit) -> list[_Move]:
    """The plan that a form carries. Raises `Invalid`."""
    try:
        return from_json(visit.given("plan").encode(), list[_Move])
    except (ValueError, msgspec.MsgspecError) as exc:
        raise Invalid("The form carries no plan. Make one first.", field="plan") from exc


def _question(
    visit: Visit, name: TopicName, group: str, moves: Sequence[_Move], is_forced: bool
) -> AskedOperation:
    """The request that moves positions."""
    expected = {} if is_forced else {one.partition: one.before for one in moves}
    body = MovesBody({one.partition: one.to for one in moves}, expected)
    at = {"topic": name, "group": group}
    return visit.question("groups.move", at, body=bodies.encode(body))


# --- forget --------------------------------------------------------------------------------------


async def ask_to_forget(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The page on which a visitor confirms that the positions of a group are to be forgotten."""
    return await _forgetting(visit, TopicName.of(namespace, topic), group)


async def forget(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Forget the positions of a group whose name was typed, if they are those that were shown."""
    name = TopicName.of(namespace, topic)
    visit.require_typed(group)
    expected = {one.partition: one.before for one in _moves(visit)}
    try:
        await visit.put(_forget(visit, name, group, expected))
    except Conflict as error:
        return await _forgetting(visit, name, group, error)
    back = f"{path_of('groups')}?namespace={namespace}"
    return Redirect(back, Notice(f"The positions of {group} in {name} were forgotten."))


async def _forgetting(
    visit: Visit, name: TopicName, group: str, refusal: TMSError | None = None
) -> WebPage:
    info, (bounds, _) = await asyncio.gather(
        visit.ask("groups.describe", topic=name, group=group),
        visit.tried("topics.describe_topic", name=name),
    )
    plan: Sequence[PartitionReset] = ()
    if bounds is not None:
        earliest = ResetTarget(Position.earliest())
        plan = planned(earliest, bounds.partition_infos, info.partitions, {})
    members = _members(info)
    shown = [_Move(one.partition, one.position or "", "") for one in info.partitions]
    shown = [] if members or len(shown) > EXPECTED_MAX else shown
    expected = {one.partition: one.before for one in shown}
    words = ["group", "reset", str(name), group, *(["--force"] if members else [])]
    values = {
        "name": name,
        "group": group,
        "members": members,
        "again": None if bounds is None else sum(one.again or 0 for one in plan),
        "partitions": sum(one.position is not None for one in info.partitions),
        "carried": msgspec.json.encode(shown).decode(),
        "refusal": refusal,
        "same": visit.same_as(words, _forget(visit, name, group, expected)),
    }
    return WebPage("group_forget.html", values, 200 if refusal is None else CONFLICT)


def _forget(
    visit: Visit, name: TopicName, group: str, expected: Mapping[int, str]
) -> AskedOperation:
    at: dict[str, Any] = {"topic": name, "group": group}
    return visit.question("groups.forget_positions", at | {"expected": expected or None})


# --- parts ---------------------------------------------------------------------------------------


async def _described(visit: Visit, name: TopicName, group: str) -> GroupInfo | None:
    """A group; None if it has neither members nor positions."""
    try:
        info: GroupInfo = await visit.ask("groups.describe", topic=name, group=group)
    except GroupNotFound:
        return None
    return info


def _members(info: GroupInfo) -> int:
    """The number of members that move its positions; of Kafka's protocol, at least one."""
    return max(len(info.members), info.kind is GroupKind.CLASSIC)


def _partitions(moves: Sequence[_Move]) -> str:
    return "1 partition" if len(moves) == 1 else f"{len(moves)} partitions"


def _resource(name: TopicName, group: str) -> str:
    return f"group:{name.namespace}:{name.topic}/{group}"


_GROUP = "/console/groups/{namespace}/{topic}/{group}"
ROUTES = (
    PageRoute("GET", "/console/groups", show_groups),
    PageRoute("GET", _GROUP, show_group),
    PageRoute("GET", f"{_GROUP}/reset", plan_reset),
    PageRoute("POST", f"{_GROUP}/reset", reset),
    PageRoute("GET", f"{_GROUP}/forget", ask_to_forget),
    PageRoute("POST", f"{_GROUP}/forget", forget),
)
