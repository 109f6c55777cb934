"""`tms queue …`: queues, their settings and how they stand.

Deleting a queue asks for its group's name first, shows with `--dry-run` what it would do, and takes
`--yes`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from tms.api.queues import REDRIVE_MAX
from tms.cli import queue_messages as messages
from tms.cli.output import Format, Row, table_text, write
from tms.cli.session import (
    POSITION,
    SECONDS,
    TOPIC,
    CommandGroup,
    Session,
    Shared,
    changes_of,
    dry_run_option,
    given,
    group_argument,
    namespace_option,
    seconds_of,
    topic_argument,
    yes_option,
)
from tms.cli.topics import time_text
from tms.model.position import Position
from tms.model.queue import DELIVERIES_MAX, OUTSTANDING_MAX, QueueInfo, QueueSettings
from tms.model.topic import Durability, TopicName

_F = TypeVar("_F", bound=Callable[..., Any])
_DELIVERIES = click.IntRange(0, DELIVERIES_MAX)
_SHARE = click.FloatRange(0, 1)
_OUTSTANDING = click.IntRange(1, OUTSTANDING_MAX)


@click.group("queue", cls=CommandGroup)
def command() -> None:
    """Make queues, work on them, and look after their dead letters."""


for _command in (messages.receive, messages.peek, messages.dead, *messages.TOKEN_COMMANDS):
    command.add_command(_command)


def _settings(function: _F) -> _F:
    """The options for a queue's settings; None for each that was not typed."""
    levels = click.Choice([level.value for level in Durability])
    for option in (
        click.option("--durability", type=levels, help="Of acks. [the topic's]"),
        click.option("--outstanding-max", type=_OUTSTANDING, help="Not settled. [1,000,000]"),
        click.option("--dead-letter", type=TOPIC, help="Topic of dead letters. [TOPIC-GROUP-dead]"),
        click.option("--jitter", type=_SHARE, help="Share by which a back-off varies. [0.2]"),
        click.option("--backoff-max", "backoff_max_s", type=SECONDS, help="Its limit. [10m]"),
        click.option("--backoff-first", "backoff_first_s", type=SECONDS, help="First pause. [1s]"),
        click.option("--deliveries-max", type=_DELIVERIES, help="0: no limit. [16]"),
        click.option("--lease", "lease_s", type=SECONDS, help="How long a worker has. [30s]"),
    ):
        function = option(function)
    return function


@command.command("create", cls=Shared)
@topic_argument
@group_argument
@_settings
@click.option("--ordered-by", type=click.Choice(["key"]), help="One message of a key at a time.")
@click.option("--start", type=POSITION, help="Where it begins. [earliest]")
@click.pass_obj
def create(
    session: Session, /, topic: str, group: str, start: Position | None, **settings: Any
) -> None:
    """Make a queue of GROUP on TOPIC. Doing it again with the same settings changes nothing."""
    changes = given(settings) | ({} if start is None else {"start": str(start)})
    with session.bus() as bus:
        _show(
            session, bus.queue_port.declare(TopicName.parse(topic), group, QueueSettings(**changes))
        )


@command.command("update", cls=Shared)
@topic_argument
@group_argument
@_settings
@click.pass_obj
def update(session: Session, /, topic: str, group: str, **settings: Any) -> None:
    """Change settings of a queue."""
    changes = changes_of(settings)
    with session.bus() as bus:
        _show(session, bus.queue_port.update(TopicName.parse(topic), group, changes))


@command.command("list", cls=Shared)
@click.argument("topic", type=TOPIC, required=False)
@namespace_option
@click.pass_obj
def list_(session: Session, topic: str | None, namespace: str) -> None:
    """The queues of TOPIC; or of all topics of a namespace, in few numbers."""
    if topic is None:
        _list_all(session, namespace)
        return
    with session.bus() as bus:
        queues = bus.queue_port.list_queues(TopicName.parse(topic))
    if not queues and session.format is Format.TABLE:
        session.say(f"No queues on {topic}; `tms queue create {topic} GROUP` makes one.")
    session.show([_document(info) for info in queues], [_row(info) for info in queues])


def _list_all(session: Session, namespace: str) -> None:
    with session.bus() as bus:
        rows: list[Row] = [
            {
                "group": queue.group,
                "topic": queue.topic,
                "waiting": queue.waiting,
                "leased": queue.leased,
                "dead": queue.dead,
                "oldest_seconds": seconds_of(queue.oldest_ms),
            }
            for queue in bus.list_queues(namespace)
        ]
    if not rows and session.format is Format.TABLE:
        session.say(f"No queues in the namespace {namespace}; `tms queue create` makes one.")
    session.show(rows, rows)


@command.command("show", cls=Shared)
@topic_argument
@group_argument
@click.pass_obj
def show(session: Session, topic: str, group: str) -> None:
    """How a queue stands, and its settings."""
    with session.bus() as bus:
        info = bus.queue_port.describe(TopicName.parse(topic), group)
    _show(session, info)
    if session.format is Format.TABLE and info.partitions:
        write("\n" + table_text(msgspec.to_builtins(info.partitions)))


@command.command("redrive", cls=Shared)
@topic_argument
@group_argument
@click.option("-n", "--limit", type=click.IntRange(1, REDRIVE_MAX), default=1_000, help="[1,000]")
@click.pass_obj
def redrive(session: Session, topic: str, group: str, limit: int) -> None:
    """Move dead letters of a queue back to TOPIC."""
    with session.bus() as bus:
        moved = bus.queue_port.redrive(TopicName.parse(topic), group, limit)
    session.say(f"{moved:,} dead letters were moved back to {topic}")
    done: Row = {"group": group, "topic": topic, "moved": moved}
    session.show_result(done)


@command.command("delete", cls=Shared)
@topic_argument
@group_argument
@dry_run_option
@yes_option
@click.pass_obj
def delete(session: Session, topic: str, group: str, dry_run: bool, yes: bool) -> None:
    """Delete a queue: what was settled is forgotten. The messages of TOPIC stay."""
    name = TopicName.parse(topic)
    with session.bus() as bus:
        info = bus.queue_port.describe(name, group)
        left = info.backlog + info.leased + info.ready + info.delayed + info.blocked + info.dying
        what = f"The queue {group} of {topic} will be forgotten ({left:,} messages not settled)."
        if session.proceed(what, group, dry_run, yes):
            bus.queue_port.delete(name, group)
    done: Row = {"group": group, "topic": topic, "deleted": not dry_run}
    session.show_result(done)


def _document(info: QueueInfo) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(info)
    return document | {
        "topic": str(info.topic),
        "dead_letter": str(info.dead_letter),
    }


def _row(info: QueueInfo) -> Row:
    return {
        "group": info.group,
        "topic": str(info.topic),
        "backlog": info.backlog,
        "leased": info.leased,
        "ready": info.ready,
        "delayed": info.delayed,
        "blocked": info.blocked,
        "dying": info.dying,
        "dead": info.dead,
    }


def _show(session: Session, info: QueueInfo) -> None:
    settings = msgspec.to_builtins(info.settings) | {"dead_letter": str(info.dead_letter)}
    facts = {**_row(info), "created": time_text(info.created_ms), **settings}
    session.show_one(_document(info), facts)
