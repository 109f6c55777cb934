"""`tms inspect`: the state of a topic in the store: segments, blocks, ids, flags.

Nothing changes: the command asks a service, or opens a copy of a data directory whose tables are
links.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from tms.cli.output import Format, Row, table_text, write
from tms.cli.parameters import PartitionOption, TopicParameter, session_command
from tms.cli.session import Session
from tms.cli.topics import time_text
from tms.model.inspection import BlockInspection, PartitionInspection, SegmentInspection

if TYPE_CHECKING:
    import tms

_FLAGS = (
    (1, "transactional"),
    (2, "staged"),
    (4, "rolled back"),
    (8, "sparse"),
    (32, "counts messages"),
)


@session_command("inspect")
def command(
    session: Session,
    topic: TopicParameter,
    partition: Annotated[PartitionOption, "Only this one. [all]"] = None,
    limit: Annotated[int, "-n", click.IntRange(1, 1_000), "Blocks. [5]"] = 5,
) -> None:
    """Show segments and the newest blocks of TOPIC, as they are stored."""
    with looking_bus(session) as bus:
        count = bus.describe_topic(topic).settings.partitions
        numbers = range(count) if partition is None else [partition]
        partitions = [bus.inspect(topic, number, limit) for number in numbers]
    if session.format is Format.TABLE:
        write("\n".join(_text(inspection) for inspection in partitions))
    else:
        rows = [
            _block_row(inspection.partition, block)
            for inspection in partitions
            for block in inspection.blocks
        ]
        session.show(msgspec.to_builtins(partitions), rows)


@contextmanager
def looking_bus(session: Session) -> Iterator["tms.Bus"]:
    """The service, or a copy of the data directory that is gone afterwards."""
    _, data = session.target()
    if data is None:
        with session.bus() as bus:
            yield bus
        return
    from tms.store.leveldb import read_only_copy

    with read_only_copy(data) as copy, session.embedded(copy) as bus:
        yield bus


def flags_text(flags: int) -> str:
    """The names of the flags of a block."""
    return ", ".join(name for bit, name in _FLAGS if flags & bit) or "plain"


def _text(inspection: PartitionInspection) -> str:
    place = f"partition {inspection.partition}, epoch {inspection.epoch}"
    head = f"{place}, readable from {inspection.floor_id}\n"
    segments = table_text([_segment_row(segment) for segment in inspection.segments])
    blocks = table_text([_block_row(inspection.partition, block) for block in inspection.blocks])
    return "\n".join(part for part in (head + segments, blocks) if part)


def _segment_row(segment: SegmentInspection) -> Row:
    row: dict[str, Any] = msgspec.to_builtins(segment)
    row["created"] = time_text(row.pop("created_ms"))
    return row


def _block_row(partition: int, block: BlockInspection) -> Row:
    row: dict[str, Any] = {"partition": partition, **msgspec.to_builtins(block)}
    row["flags"] = flags_text(block.flags)
    row["write_pointer"] = str(block.write_pointer) if block.write_pointer else None
    row["producer_id"] = f"{block.producer_id:016x}" if block.producer_id else None
    return row
