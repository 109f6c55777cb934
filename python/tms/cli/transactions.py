"""`tms tx …` and `tms position …`: transactions and single positions of groups.

Making a transaction invalid and moving a group ask for a name first, show with `--dry-run` what
they would do, and take `--yes`.
"""

from typing import Any

import click
import msgspec

from tms.cli.output import Row
from tms.cli.session import (
    POSITION,
    RETENTION,
    CommandGroup,
    Session,
    Shared,
    dry_run_option,
    group_argument,
    topic_argument,
    yes_option,
)
from tms.cli.topics import time_text
from tms.errors import GroupNotFound
from tms.model.position import Position
from tms.model.topic import parse_retention
from tms.model.transaction import TransactionInfo


@click.group("tx", cls=CommandGroup)
def command() -> None:
    """List, show, abort, invalidate and prune transactions."""


@click.group("position", cls=CommandGroup)
def position() -> None:
    """Show and set where groups stand in single partitions; see also `tms group`."""


@command.command("list", cls=Shared)
@click.pass_obj
def list_(session: Session) -> None:
    """The transactions in progress, oldest first."""
    with session.bus() as bus:
        open_ = bus.transactions.open()
    if not open_:
        session.say("No transaction is in progress.")
    session.show([msgspec.to_builtins(info) for info in open_], [_row(info) for info in open_])


@command.command("show", cls=Shared)
@click.argument("transaction", type=int)
@click.pass_obj
def show(session: Session, transaction: int) -> None:
    """How TRANSACTION stands: open, committed, aborted, invalid or timed-out."""
    with session.bus() as bus:
        _show(session, bus.transactions.describe(transaction))


@command.command("abort", cls=Shared)
@click.argument("transaction", type=int)
@click.pass_obj
def abort(session: Session, transaction: int) -> None:
    """Abort TRANSACTION; what it has published is taken back."""
    with session.bus() as bus:
        _show(session, bus.transactions.abort(transaction))


@command.command("invalidate", cls=Shared)
@click.argument("transaction", type=int)
@yes_option
@click.pass_obj
def invalidate(session: Session, transaction: int, yes: bool) -> None:
    """Make TRANSACTION invalid: nothing of it will ever be seen."""
    with session.bus() as bus:
        info = bus.transactions.describe(transaction)
        what = f"The transaction {transaction} ({info.outcome}) will be invalid for good."
        session.confirm(what, str(transaction), yes)
        _show(session, bus.transactions.invalidate(transaction))


@command.command("prune", cls=Shared)
@click.option(
    "--older-than", type=RETENTION, default="50h", help="Those that began so long ago [50h]."
)
@dry_run_option
@yes_option
@click.pass_obj
def prune(session: Session, older_than: str, dry_run: bool, yes: bool) -> None:
    """Take old transactions off the invalid list, so that snapshots get shorter. Their messages are
    still never seen. Cells that they left in HBase tables must be gone before."""
    before_ms = max(0, session.clock.now_ms() - (parse_retention(older_than) or 0))
    what = f"Invalid transactions from before {time_text(before_ms)} will not be listed any more."
    pruned = 0
    if session.proceed(what, "prune", dry_run, yes):
        with session.bus() as bus:
            pruned = bus.transactions.prune(before_ms)
    done: Row = {"before": time_text(before_ms), "pruned": pruned}
    session.show_result(done)


@position.command("show", cls=Shared)
@topic_argument
@group_argument
@click.pass_obj
def show_position(session: Session, topic: str, group: str) -> None:
    """Where GROUP stands in TOPIC, and how many messages it is behind."""
    places: dict[int, tuple[str | None, int | None]]
    with session.bus() as bus:
        try:
            places = {
                part.partition: (part.position, part.lag)
                for part in bus.group(topic, group=group).partitions
            }
        except GroupNotFound:  # it has everything before it
            places = {
                info.partition: (None, info.end_offset - info.start_offset)
                for info in bus.describe_topic(topic).partition_infos
            }
    rows: list[Row] = [
        {"partition": partition, "position": position, "lag": lag}
        for partition, (position, lag) in sorted(places.items())
    ]
    session.show(rows, rows)


@position.command("set", cls=Shared)
@topic_argument
@group_argument
@click.argument("to", type=POSITION)
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, required=True
)
@dry_run_option
@yes_option
@click.pass_obj
def set_position(
    session: Session,
    topic: str,
    group: str,
    to: Position,
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Move GROUP in TOPIC to a position, in the partitions named; all: `tms group reset --to`."""
    with session.bus() as bus:
        changes: dict[int, Position] = dict.fromkeys(partitions, to)
        what = f"{group} will go on at {to} in {len(changes)} partitions of {topic}."
        if session.proceed(what, group, dry_run, yes):
            bus.set_positions(topic, changes, group=group)
    moved: Row = {"group": group, "topic": topic, "position": str(to), "moved": not dry_run}
    session.show_result(moved)


def _row(info: TransactionInfo) -> Row:
    return {
        "transaction": info.transaction_id,
        "outcome": info.outcome,
        "began": time_text(info.transaction_id // 1_000_000),
        "expires": time_text(info.expires_ms) if info.expires_ms else None,
        "client": info.client,
    }


def _show(session: Session, info: TransactionInfo) -> None:
    document: dict[str, Any] = msgspec.to_builtins(info)
    session.show_one(document, _row(info))
