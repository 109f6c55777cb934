"""`tms tx …` and `tms position …`: transactions and single positions of groups.

`invalidate`, `position set` and `position forget` ask for a name first, show with `--dry-run` what
they would do, and take `--yes`.
"""

from types import MappingProxyType
from typing import Annotated, Any

import click
import msgspec

from tms.api.operations import TransactionsApi
from tms.cli.group import metadata_columns
from tms.cli.operations import Given, runs, takes
from tms.cli.output import Row, columns
from tms.cli.parameters import (
    RETENTION,
    DryRunOption,
    GroupParameter,
    PartitionsOption,
    PositionOption,
    TopicParameter,
    YesOption,
    session_command,
)
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.errors import GroupNotFound
from tms.model.group import GroupPartition
from tms.model.topic import parse_retention
from tms.model.transaction import CommittedPosition, TransactionInfo

_ID = MappingProxyType({"id": "transaction"})


@click.group("tx", cls=CommandGroup)
def command() -> None:
    """List, show, abort, invalidate and prune transactions."""


@click.group("position", cls=CommandGroup)
def position() -> None:
    """Show, set and forget positions of groups in single partitions; see also `tms group`."""


@runs(command, "list", TransactionsApi.open)
def list_(session: Session, infos: list[TransactionInfo], given: Given) -> None:
    """List the transactions in progress, oldest first, and those begun elsewhere that readers wait
    for."""
    if not infos:
        session.say("No transaction is in progress.")
    session.show([msgspec.to_builtins(info) for info in infos], [_row(info) for info in infos])


@runs(command, "show", TransactionsApi.describe, names=_ID)
def show(session: Session, info: TransactionInfo, given: Given) -> None:
    """Show the state of TRANSACTION: open, committed, aborted, invalid or timed-out."""
    _show(session, info)


@runs(command, "abort", TransactionsApi.abort, names=_ID)
def abort(session: Session, info: TransactionInfo, given: Given) -> None:
    """Abort TRANSACTION; its messages are rolled back."""
    _show(session, info)


@session_command("invalidate", command)
@takes(TransactionsApi.invalidate, names=_ID)
def invalidate(session: Session, transaction: int, yes: YesOption = False) -> None:
    """Make TRANSACTION invalid: no reader will ever see its messages. The messages of one begun
    elsewhere are rolled back, and no more are accepted."""
    with session.bus() as bus:
        info = bus.admin.transactions.describe(transaction)
        what = f"The transaction {transaction} ({info.outcome}) will be invalid for good."
        session.confirm(what, str(transaction), yes)
        _show(session, bus.admin.transactions.invalidate(transaction))


@session_command("prune", command)
def prune(
    session: Session,
    older_than: Annotated[str, RETENTION, "Least age of the transactions [50h]."] = "50h",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove old transactions from the invalid list, so that snapshots get shorter. Their messages
    stay hidden. Their cells in HBase tables must be gone before."""
    before_ms = max(0, session.clock.now_ms() - (parse_retention(older_than) or 0))
    what = f"Invalid transactions from before {time_text(before_ms)} will not be listed any more."
    pruned = 0
    if session.proceed(what, "prune", dry_run, yes):
        with session.bus() as bus:
            pruned = bus.admin.transactions.prune(before_ms)
    done: Row = {"before": time_text(before_ms), "pruned": pruned}
    session.show_result(done)


@session_command("show", position)
def show_position(session: Session, topic: TopicParameter, group: GroupParameter) -> None:
    """Show the positions of GROUP in TOPIC with their metadata, and its lag in messages."""
    with session.bus() as bus:
        try:
            parts = bus.describe_group(topic, group=group).partitions
        except GroupNotFound:  # it has everything before it
            parts = tuple(
                GroupPartition(
                    info.partition, None, 0, None, info.end_offset - info.start_offset, None
                )
                for info in bus.describe_topic(topic).partition_infos
            )
    shown = "partition", "position", "lag"
    session.show(
        [columns(part, *shown, "leader_epoch", "metadata") for part in parts],
        [columns(part, *shown, *metadata_columns(parts)) for part in parts],
    )


@session_command("set", position)
def set_position(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    to: PositionOption,
    partitions: PartitionsOption,
    metadata: Annotated[str, "A text to store with the position."] = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Move GROUP in TOPIC to a position, in the partitions named; all: `tms group reset --to`."""
    changes = dict.fromkeys(partitions, CommittedPosition(to, metadata))
    with session.bus() as bus:
        what = f"{group} will go on at {to} in {len(changes)} partitions of {topic}."
        if session.proceed(what, group, dry_run, yes):
            bus.set_positions(topic, changes, group=group)
    moved: Row = {"group": group, "topic": topic, "position": str(to), "moved": not dry_run}
    session.show_result(moved)


@session_command("forget", position)
def forget_position(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    partitions: PartitionsOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Forget the positions of GROUP in TOPIC, in the partitions named, so that it begins anew
    there; all: `tms group reset`."""
    with session.bus() as bus:
        what = f"{group} will begin anew in {len(set(partitions))} partitions of {topic}."
        if session.proceed(what, group, dry_run, yes):
            bus.forget_positions(topic, group=group, partitions=partitions)
    forgotten: Row = {"group": group, "topic": topic, "forgotten": not dry_run}
    session.show_result(forgotten)


def _row(info: TransactionInfo) -> Row:
    return {
        "transaction": str(info.transaction_id),  # as `tms tx invalidate` takes it
        "outcome": info.outcome,
        "began": time_text(info.transaction_id // 1_000_000),
        "expires": time_text(info.expires_ms) if info.expires_ms else None,
        "client": info.client,
        "holds": ", ".join(
            f"{one.topic}/{one.partition} since {time_text(one.since_ms)}" for one in info.held
        ),
    }


def _show(session: Session, info: TransactionInfo) -> None:
    document: dict[str, Any] = msgspec.to_builtins(info)
    session.show_one(document, _row(info))
