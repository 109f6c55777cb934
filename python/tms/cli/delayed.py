"""`tms delayed …`: messages that are not due yet. `tms publish --delay` makes some."""

from itertools import islice
from typing import Annotated

import click

from tms.cli.output import Row, text_of
from tms.cli.parameters import TopicParameter, session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.model.delayed import DelayedId, DelayedMessage

_VALUE_CHARS = 60


@click.group("delayed", cls=CommandGroup)
def command() -> None:
    """List, count and cancel messages that are not due yet."""


@session_command("list", command)
def list_(
    session: Session,
    topic: TopicParameter,
    limit: Annotated[int, "-n", click.IntRange(min=1), "At most so many. [20]"] = 20,
    after: Annotated[str | None, "Begin behind the message with this id."] = None,
) -> None:
    """List the waiting messages of TOPIC, in the order in which they are due."""
    with session.bus() as bus:
        waiting = list(islice(bus.list_delayed(topic, after), limit))
    if not waiting:
        session.say(f"Nothing waits in {topic}.")
    rows = [_row(message) for message in waiting]
    session.show(rows, rows)


@session_command("count", command)
def count(session: Session, topic: TopicParameter) -> None:
    """Count the waiting messages of TOPIC, and show when the first is due."""
    with session.bus() as bus:
        info = bus.describe_delayed(topic)
    due_ms = info.next_due_ms
    facts: Row = {
        "topic": topic,
        "waiting": info.waiting,
        "next_due": None if due_ms is None else time_text(due_ms),
    }
    session.show_one(facts, facts)


@session_command("cancel", command)
def cancel(session: Session, topic: TopicParameter, ids: tuple[str, ...]) -> None:
    """Cancel messages of TOPIC by their IDS. Messages that are delivered already stay."""
    wanted = [DelayedId.parse(id) for id in ids]
    with session.bus() as bus:
        rows: list[Row] = [
            {"id": str(id), "cancelled": bus.cancel_delayed(topic, id)} for id in wanted
        ]
    session.show(rows, rows)


def _row(message: DelayedMessage) -> Row:
    key, value = message.key, message.value
    return {
        "id": str(message.id),
        "deliver_at": time_text(message.id.due_ms),
        "partition": message.partition,
        "key": None if key is None else _shown(key),
        "value": None if value is None else _shown(value),
    }


def _shown(cell: bytes) -> str:
    text = text_of(cell) or ""
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"
