"""`tms group …`: groups of consumers, their members, their lag, and their positions.

`reset` asks for the group's name first, shows with `--dry-run` what it would do, and takes `--yes`.
It refuses a group with members at work, because they would go on at their own positions, and
changes nothing if a position has been moved since it showed its plan.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from tms.api.parameters import EXPECTED_MAX
from tms.cli.declaring import ARGUMENT
from tms.cli.output import Format, Row, columns, table_text, write
from tms.cli.parameters import (
    TOPIC,
    DryRunOption,
    GroupParameter,
    LimitOption,
    NamespaceOption,
    PartitionsOption,
    PositionOption,
    TemplateOption,
    TopicParameter,
    YesOption,
    session_command,
)
from tms.cli.queue_messages import print_dead_letters
from tms.cli.session import CommandGroup, Session, seconds_of
from tms.errors import Conflict, GroupNotFound
from tms.model.group import GroupInfo, GroupKind, GroupPartition
from tms.model.reset import PartitionReset
from tms.model.topic import TopicName
from tms.model.transaction import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from tms.client.client import Bus


@click.group("group", cls=CommandGroup)
def command() -> None:
    """List, show and reset groups of consumers."""


@session_command("list", command)
def list_(
    session: Session,
    topic: Annotated[TopicParameter | None, ARGUMENT] = None,
    namespace: NamespaceOption = "default",
) -> None:
    """List the groups of TOPIC, or of all topics of a namespace, with their numbers of members and
    their lag."""
    with session.bus() as bus:
        groups = list(bus.list_groups(topic, namespace=namespace))
    if not groups:
        where = f"the namespace {namespace}" if topic is None else topic
        session.say(f"No group has members or positions in {where}.")
    rows: list[Row] = [
        columns(group, "group", "topic", "kind", "members", "lag")
        | {"lag_seconds": seconds_of(group.lag_ms)}
        for group in groups
    ]
    session.show(rows, rows)


@session_command("show", command)
def show(session: Session, topic: TopicParameter, group: GroupParameter) -> None:
    """Show the member, the position and the lag of GROUP in each partition of TOPIC, and the
    metadata that were committed with positions."""
    with session.bus() as bus:
        info = bus.describe_group(topic, group=group)
    metadata = metadata_columns(info.partitions)
    rows: list[Row] = [
        {"partition": part.partition, "member": part.owner}
        | columns(part, "position", "lag")
        | {"lag_seconds": seconds_of(part.lag_ms)}
        | columns(part, *metadata)
        for part in info.partitions
    ]
    idle = [member.member for member in info.members if not member.partitions]
    if idle:
        session.say(f"Members without a partition: {', '.join(idle)}")
    if info.kind is GroupKind.CLASSIC:
        session.say("The group has members of Kafka's protocol.")
    session.show(msgspec.to_builtins(info), rows)


@session_command("dead", command)
def dead(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    dead_letter: Annotated[str | None, TOPIC, "Their topic. [TOPIC-GROUP-dead]"] = None,
    limit: LimitOption = None,
    template: Annotated[TemplateOption, r"For example '%c %v\n'; see docs/cli.md."] = None,
) -> None:
    """Print the dead letters of GROUP, which are messages that a handler has failed with too often.
    Their headers name the causes."""
    with session.bus() as bus:
        place = bus._dead_letter_topic(TopicName.parse(topic), group, dead_letter)
        letters = bus.list_dead_letters(topic, group=group, dead_letter=dead_letter)
        print_dead_letters(session, islice(letters, limit), template, place)


@session_command("reset", command)
def reset(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    to: Annotated[PositionOption | None, "The position to go on at [forget the positions]."] = None,
    shift: Annotated[int, "Messages to go on (negative: back) from the present position."] = 0,
    partitions: Annotated[PartitionsOption, "Only this one; may be repeated. [all]"] = (),
    force: Annotated[bool, "Reset even a group with members."] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Forget the positions of GROUP in TOPIC, so that it begins anew, or move them with --to or
    --shift. Shows for each partition how many messages will be read again or skipped."""
    with session.bus() as bus:
        plan: list[PartitionReset] = []
        where = "begin anew"
        if to is not None or shift:
            where = f"go on {shift:+,} messages" if to is None else f"go on at {to}"
            plan = bus.plan_reset(topic, group=group, to=to, shift=shift, partitions=partitions)
        count = len(set(partitions)) or bus.describe_topic(topic).settings.partitions
        before: Mapping[int, str] = {}
        try:
            info = bus.describe_group(topic, group=group)
            _require_idle(info, force)
            before = {one.partition: one.position or "" for one in info.partitions}
        except GroupNotFound:
            if not plan:
                raise
        rows = [_plan_row(one) for one in plan]
        if session.format is Format.TABLE and rows:
            write(table_text(rows))
        what = f"{group} will {where} in {count} partitions of {topic}."
        if session.proceed(what, group, dry_run, yes):
            if plan:
                before = {one.partition: one.before for one in plan}
            _reset(bus, topic, group, partitions, plan, {} if force else before)
    position = None if to is None else str(to)
    done: Row = {"group": group, "topic": topic, "position": position, "reset": not dry_run}
    if session.format is not Format.TABLE:
        session.show({**done, "partitions": rows}, [done])


def _reset(
    bus: "Bus",
    topic: str,
    group: str,
    partitions: tuple[int, ...],
    plan: list[PartitionReset],
    expected: Mapping[int, str],
) -> None:
    """Do what the plan says; without one, forget the positions. Members at work move positions all
    the time, so that with `--force` none is expected."""
    if plan:
        positions = {one.partition: one.to for one in plan}
        bus.set_positions(topic, positions, group=group, expected=expected)
        return
    some = partitions or None
    known = expected if len(expected) <= EXPECTED_MAX else None
    bus.forget_positions(topic, group=group, partitions=some, expected=known)


def _plan_row(one: PartitionReset) -> Row:
    return columns(one, "partition", "before", "to", "again", "skipped")


def _require_idle(info: GroupInfo, force: bool) -> None:
    has = f"{len(info.members)} members" if info.members else ""
    if info.kind is GroupKind.CLASSIC:
        has = "members of Kafka's protocol"
    if has and not force:
        raise Conflict(
            f"The group {info.group} of {info.topic} has {has}, which would go on where they are.",
            next="end them, or add --force: at-least-once members then go on at the new positions",
        )


def metadata_columns(parts: Iterable[GroupPartition]) -> tuple[str, ...]:
    """The columns of the metadata of positions; none if no position has some."""
    some = any(part.metadata or part.leader_epoch != NO_LEADER_EPOCH for part in parts)
    return ("leader_epoch", "metadata") if some else ()
