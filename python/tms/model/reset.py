"""Resets of a group: where it goes on in each partition, and what it reads again or skips.

    the group's positions ─┐
    the topic's partitions ├▶ planned ─▶ a `PartitionReset` for each partition
    the target ────────────┘

* A plan changes nothing. A reset sets its positions, with those from which it was made as a
  precondition.
* The end of a partition is spelled as the place after its last message: a group that is reset to
  the end today reads everything that is published from now on, whenever its members begin.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tms.errors import Invalid, OffsetOutOfRange
from tms.model.group import GroupPartition
from tms.model.ids import MessageId
from tms.model.position import Position, PositionKind
from tms.model.topic import PartitionInfo

SHIFT_MAX = 2**53  # messages


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The place at which a group goes on: a position, or one that is `shift` messages behind (or,
    if negative, before) its present one. Raises `Invalid` unless it is one of them."""

    to: Position | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        if (self.to is None) is (self.shift == 0):
            raise Invalid("A reset takes either a position or a shift that is not 0.", field="to")
        if abs(self.shift) > SHIFT_MAX:
            raise Invalid(f"A shift is at most {SHIFT_MAX:,} messages.", field="shift")

    @property
    def looked_up(self) -> Position | None:
        """The position whose offsets a plan needs; None if the partitions' bounds are enough."""
        kinds = (PositionKind.ID, PositionKind.AFTER, PositionKind.TIME)
        return self.to if self.to is not None and self.to.kind in kinds else None


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """A partition of a plan. `before` is the present position, empty if there is none; `at` its
    offset, None if it is unknown. `to` is the new position, `goes_on_at` its offset."""

    partition: int
    before: str
    at: int | None
    to: str
    goes_on_at: int

    @property
    def again(self) -> int | None:
        """The number of offsets that the group goes back: messages that are read again."""
        return None if self.at is None else max(0, self.at - self.goes_on_at)

    @property
    def skipped(self) -> int | None:
        """The number of offsets that it goes forward: messages that it will not read."""
        return None if self.at is None else max(0, self.goes_on_at - self.at)


def planned(
    target: ResetTarget,
    partitions: Sequence[PartitionInfo],
    positions: Sequence[GroupPartition],
    offsets: Mapping[int, int],
    chosen: Collection[int] = (),
) -> list[PartitionReset]:
    """The plan for some partitions of a topic, or for all. `positions` of a group that has none
    yet are empty; `offsets` are those of `target.looked_up`. Raises `Invalid` for a partition that
    the topic does not have, and where a shift has nothing to begin at; `OffsetOutOfRange`."""
    if unknown := set(chosen) - {one.partition for one in partitions}:
        raise Invalid(
            f"The topic has the partitions 0 to {len(partitions) - 1}, not {min(unknown)}.",
            field="partition",
        )
    known = {one.partition: one for one in positions}
    return [
        _planned(target, bounds, known.get(bounds.partition), offsets)
        for bounds in partitions
        if not chosen or bounds.partition in chosen
    ]


def _planned(
    target: ResetTarget,
    bounds: PartitionInfo,
    now: GroupPartition | None,
    offsets: Mapping[int, int],
) -> PartitionReset:
    start = bounds.start_offset
    end = bounds.end_offset
    at: int | None = start
    if now is not None:
        at = None if now.lag is None else max(start, end - now.lag)
    before = "" if now is None else now.position or ""
    to = target.to
    if to is None:
        if at is None:
            raise Invalid(
                f"The lag of partition {bounds.partition} is unknown, so it cannot be shifted. "
                "Name a position, or leave this partition out.",
                field="shift",
            )
        to = Position.offset(min(max(at + target.shift, start), end))
    elif to.kind is PositionKind.OFFSET and not start <= to.number <= end:
        raise OffsetOutOfRange(
            f"Partition {bounds.partition} has the offsets {start} to {end}, not {to.number}. "
            "Choose one of them, or fewer partitions.",
            partition=bounds.partition,
            earliest=start,
            end=end,
        )
    goes_on_at = offsets.get(bounds.partition, end)
    if to.kind is PositionKind.EARLIEST:
        goes_on_at = start
    elif to.kind is PositionKind.LATEST:
        goes_on_at = end
    elif to.kind is PositionKind.OFFSET:
        goes_on_at = to.number
    return PartitionReset(bounds.partition, before, at, _spelled(to, bounds), goes_on_at)


def _spelled(to: Position, bounds: PartitionInfo) -> str:
    """The position as it is committed: bounds of the partition without an offset, which a fetch
    would refuse once retention has passed it."""
    is_offset = to.kind is PositionKind.OFFSET
    if to.kind is PositionKind.LATEST or (is_offset and to.number == bounds.end_offset):
        if bounds.last_id is None:
            return str(Position.earliest())
        return str(Position.after(MessageId.parse(bounds.last_id)))
    if is_offset and to.number == bounds.start_offset:
        return str(Position.earliest())
    return str(to)
