"""`tms queue …`: queues, their settings and their states.

`delete` and `discard` ask for the group's name first, show with `--dry-run` what they would do,
and take `--yes`.
"""

from typing import Annotated, Any, Literal, TypedDict, Unpack

import click
import msgspec

from tms.api.queue_operations import QueuesApi
from tms.api.queues import REDRIVE_DEFAULT, REDRIVE_MAX
from tms.cli import queue_messages as messages
from tms.cli.declaring import ARGUMENT
from tms.cli.operations import Given, runs, takes
from tms.cli.output import Format, Row, columns, table_text, write
from tms.cli.parameters import (
    SECONDS,
    TOPIC,
    DryRunOption,
    GroupParameter,
    NamespaceOption,
    Parsed,
    PositionOption,
    TopicParameter,
    YesOption,
    one_of,
    session_command,
)
from tms.cli.session import CommandGroup, Session, changes_of, given, seconds_of
from tms.cli.topics import time_text
from tms.client.queue import letter_ids
from tms.model.dead_letters import LetterId
from tms.model.queue import DELIVERIES_MAX, OUTSTANDING_MAX, QueueInfo, QueueSettings
from tms.model.topic import Durability, TopicName


@click.group("queue", cls=CommandGroup)
def command() -> None:
    """Make queues, work on them, and look after their dead letters."""


for _command in (messages.receive, messages.peek, messages.dead, *messages.TOKEN_COMMANDS):
    command.add_command(_command)


LettersArgument = Annotated[
    tuple[str, ...], ARGUMENT, Parsed("letter", lambda text: str(LetterId.parse(text)))
]
OldestOption = Annotated[
    int, "-n", click.IntRange(1, REDRIVE_MAX), f"At most so many. [{REDRIVE_DEFAULT:,}]"
]


class _QueueChoices(TypedDict):
    lease_s: Annotated[float, "--lease", SECONDS, "How long a worker has. [30s]"]
    deliveries_max: Annotated[int, click.IntRange(0, DELIVERIES_MAX), "0: no limit. [16]"]
    backoff_first_s: Annotated[float, "--backoff-first", SECONDS, "First pause. [1s]"]
    backoff_max_s: Annotated[float, "--backoff-max", SECONDS, "Its limit. [10m]"]
    jitter: Annotated[float, click.FloatRange(0, 1), "Share by which a back-off varies. [0.2]"]
    dead_letter: Annotated[str, TOPIC, "Topic of dead letters. [TOPIC-GROUP-dead]"]
    outstanding_max: Annotated[int, click.IntRange(1, OUTSTANDING_MAX), "Not settled. [1,000,000]"]
    durability: Annotated[str, one_of(Durability), "Of acks. [the topic's]"]


class _NewQueueChoices(_QueueChoices):
    ordered_by: Annotated[Literal["key"], "One message of a key at a time."]
    start: Annotated[PositionOption, "Where it begins. [earliest]"]


@session_command("create", command)
def create(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    **chosen: Unpack[_NewQueueChoices],
) -> None:
    """Make a queue of GROUP on TOPIC. Doing it again with the same settings changes nothing."""
    changes = given(chosen)
    if "start" in changes:
        changes["start"] = str(changes["start"])
    with session.bus() as bus:
        name = TopicName.parse(topic)
        _show(session, bus.admin.queues.declare(name, group, QueueSettings(**changes)))


@session_command("update", command)
def update(
    session: Session, topic: TopicParameter, group: GroupParameter, **chosen: Unpack[_QueueChoices]
) -> None:
    """Change settings of a queue."""
    changes = changes_of(chosen)
    with session.bus() as bus:
        _show(session, bus.admin.queues.update(TopicName.parse(topic), group, changes))


@session_command("list", command)
def list_(
    session: Session,
    topic: Annotated[TopicParameter | None, ARGUMENT] = None,
    namespace: NamespaceOption = "default",
) -> None:
    """List the queues of TOPIC, or those of all topics of a namespace, with fewer numbers."""
    if topic is None:
        _list_all(session, namespace)
        return
    with session.bus() as bus:
        queues = bus.admin.queues.list_queues(TopicName.parse(topic))
    if not queues and session.format is Format.TABLE:
        session.say(f"No queues on {topic}; `tms queue create {topic} GROUP` makes one.")
    session.show([_document(info) for info in queues], [_row(info) for info in queues])


def _list_all(session: Session, namespace: str) -> None:
    with session.bus() as bus:
        rows: list[Row] = [
            columns(queue, "group", "topic", "waiting", "leased", "dead")
            | {"oldest_seconds": seconds_of(queue.oldest_ms)}
            for queue in bus.list_queues(namespace)
        ]
    if not rows and session.format is Format.TABLE:
        session.say(f"No queues in the namespace {namespace}; `tms queue create` makes one.")
    session.show(rows, rows)


@runs(command, "show", QueuesApi.describe)
def show(session: Session, info: QueueInfo, given: Given) -> None:
    """Show the state and the settings of a queue."""
    _show(session, info)
    if session.format is Format.TABLE and info.partitions:
        write("\n" + table_text(msgspec.to_builtins(info.partitions)))


@session_command("redrive", command)
def redrive(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    letters: LettersArgument = (),
    limit: OldestOption = REDRIVE_DEFAULT,
    dry_run: DryRunOption = False,
) -> None:
    """Move dead letters of a queue back to TOPIC: the oldest, or those named by LETTERS, as `tms
    queue dead --json` prints them."""
    name = TopicName.parse(topic)
    moved = 0
    with session.bus() as bus:
        count, what = _settled(bus.admin.queues.describe(name, group), letters, limit)
        if dry_run:
            session.say(f"dry run, nothing was changed: {what} will be moved back to {topic}.")
        elif count:
            moved = bus.admin.queues.redrive(name, group, limit, letter_ids(letters))
    if not dry_run:
        session.say(f"{moved:,} dead letters were moved back to {topic}")
    session.show_result({"group": group, "topic": topic, "moved": moved})


@session_command("discard", command)
def discard(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    letters: LettersArgument = (),
    limit: OldestOption = REDRIVE_DEFAULT,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Settle dead letters of a queue for good, the oldest or those named by LETTERS: they stay in
    their topic, and are neither counted, listed nor moved back any more."""
    name = TopicName.parse(topic)
    discarded = 0
    with session.bus() as bus:
        info = bus.admin.queues.describe(name, group)
        count, what = _settled(info, letters, limit)
        what = f"{what} of {info.dead_letter} will never be moved back."
        if session.proceed(what, group, dry_run, yes) and count:
            discarded = bus.admin.queues.discard(name, group, limit, letter_ids(letters))
    if not dry_run:
        session.say(f"{discarded:,} dead letters were discarded")
    session.show_result({"group": group, "topic": topic, "discarded": discarded})


def _settled(info: QueueInfo, letters: tuple[str, ...], limit: int) -> tuple[int, str]:
    """The number of dead letters that a command concerns, and the words for them."""
    if letters:
        return len(letters), f"{len(letters):,} dead letters"
    count = min(limit, info.dead)
    return count, f"the {count:,} oldest of {info.dead:,} dead letters"


@session_command("delete", command)
@takes(QueuesApi.delete)
def delete(
    session: Session, topic: str, group: str, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Delete a queue with its record of settled messages. The messages of TOPIC stay."""
    name = TopicName.parse(topic)
    with session.bus() as bus:
        info = bus.admin.queues.describe(name, group)
        left = info.backlog + info.leased + info.ready + info.delayed + info.blocked + info.dying
        what = f"The queue {group} of {topic} will be forgotten ({left:,} messages not settled)."
        if session.proceed(what, group, dry_run, yes):
            bus.admin.queues.delete(name, group)
    session.show_result({"group": group, "topic": topic, "deleted": not dry_run})


def _document(info: QueueInfo) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(info)
    return document | {"topic": str(info.topic), "dead_letter": str(info.dead_letter)}


def _row(info: QueueInfo) -> Row:
    counts = columns(info, "backlog", "leased", "ready", "delayed", "blocked", "dying", "dead")
    return {"group": info.group, "topic": str(info.topic), **counts}


def _show(session: Session, info: QueueInfo) -> None:
    settings = msgspec.to_builtins(info.settings) | {"dead_letter": str(info.dead_letter)}
    facts = {**_row(info), "created": time_text(info.created_ms), **settings}
    session.show_one(_document(info), facts)
