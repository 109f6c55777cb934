"""`tms group …`: groups of consumers, their members, their lag, and where they begin anew.

Resetting a group asks for its name first, shows with `--dry-run` what it would do, and takes
`--yes`. A group whose members are at work is not reset, because they would go on where they are.
"""

from itertools import islice

import click
import msgspec

from tms.cli.output import Row
from tms.cli.queue_messages import print_dead_letters
from tms.cli.session import (
    POSITION,
    TOPIC,
    CommandGroup,
    Session,
    Shared,
    dry_run_option,
    group_argument,
    namespace_option,
    seconds_of,
    topic_argument,
    yes_option,
)
from tms.errors import Conflict, GroupNotFound
from tms.model.group import GroupInfo
from tms.model.position import Position
from tms.model.topic import TopicName


@click.group("group", cls=CommandGroup)
def command() -> None:
    """List, show and reset groups of consumers."""


@command.command("list", cls=Shared)
@click.argument("topic", type=TOPIC, required=False)
@namespace_option
@click.pass_obj
def list_(session: Session, topic: str | None, namespace: str) -> None:
    """The groups of TOPIC, or of all topics of a namespace: how many members they have, and how far
    they are behind."""
    with session.bus() as bus:
        groups = list(bus.list_groups(namespace)) if topic is None else bus.groups(topic)
    if not groups:
        where = f"the namespace {namespace}" if topic is None else topic
        session.say(f"No group has members or positions in {where}.")
    rows: list[Row] = [
        {
            "group": group.group,
            "topic": group.topic,
            "members": group.members,
            "lag": group.lag,
            "lag_seconds": seconds_of(group.lag_ms),
        }
        for group in groups
    ]
    session.show(rows, rows)


@command.command("show", cls=Shared)
@topic_argument
@group_argument
@click.pass_obj
def show(session: Session, topic: str, group: str) -> None:
    """How GROUP stands in TOPIC: of each partition the member that reads it, position and lag."""
    with session.bus() as bus:
        info = bus.group(topic, group=group)
    rows: list[Row] = [
        {
            "partition": part.partition,
            "member": part.owner,
            "position": part.position,
            "lag": part.lag,
            "lag_seconds": seconds_of(part.lag_ms),
        }
        for part in info.partitions
    ]
    idle = [member.member for member in info.members if not member.partitions]
    if idle:
        session.say(f"Members without a partition: {', '.join(idle)}")
    session.show(msgspec.to_builtins(info), rows)


@command.command("dead", cls=Shared)
@topic_argument
@group_argument
@click.option("--dead-letter", type=TOPIC, help="Their topic. [TOPIC-GROUP-dead]")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("-f", "--format", "template", help=r"For example '%c %v\n'; see docs/cli.md.")
@click.pass_obj
def dead(
    session: Session,
    topic: str,
    group: str,
    dead_letter: str | None,
    limit: int | None,
    template: str | None,
) -> None:
    """Print the dead letters of GROUP: messages that a handler has failed with too often. Their
    headers say what happened."""
    with session.bus() as bus:
        place = bus.dead_letter_topic(TopicName.parse(topic), group, dead_letter)
        letters = bus.dead_letters(topic, group=group, dead_letter=dead_letter)
        print_dead_letters(session, islice(letters, limit), template, place)


@command.command("reset", cls=Shared)
@topic_argument
@group_argument
@click.option("--to", type=POSITION, help="Go on at this position [begin anew].")
@click.option("--force", is_flag=True, help="Even if it has members.")
@dry_run_option
@yes_option
@click.pass_obj
def reset(
    session: Session,
    topic: str,
    group: str,
    to: Position | None,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Forget where GROUP stands in TOPIC, so that it begins anew, or let it go on at a position."""
    with session.bus() as bus:
        partitions = range(bus.describe_topic(topic).settings.partitions)
        try:
            _require_idle(bus.group(topic, group=group), force)
        except GroupNotFound:
            if to is None:
                raise
        where = "begin anew" if to is None else f"go on at {to}"
        what = f"{group} will {where} in {len(partitions)} partitions of {topic}."
        if session.proceed(what, group, dry_run, yes):
            if to is None:
                bus.forget_positions(topic, group=group)
            else:
                bus.set_positions(topic, dict.fromkeys(partitions, to), group=group)
    done: Row = {
        "group": group,
        "topic": topic,
        "position": None if to is None else str(to),
        "reset": not dry_run,
    }
    session.show_result(done)


def _require_idle(info: GroupInfo, force: bool) -> None:
    if info.members and not force:
        raise Conflict(
            f"The group {info.group} of {info.topic} has {len(info.members)} members, which would "
            "go on where they are.",
            next="end them, or say --force: at-least-once members then go on where they are told",
        )
