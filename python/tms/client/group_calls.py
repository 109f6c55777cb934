"""The methods of a bus for groups, apart from consuming."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import getpid
from secrets import token_hex
from socket import gethostname
from types import MappingProxyType

from tms.client.calls import BusCalls
from tms.client.cursor import Start, as_position, numbers
from tms.client.group_options import MemberOptions
from tms.client.member import Member
from tms.errors import GroupNotFound, Invalid
from tms.model.group import GroupInfo, GroupPartition
from tms.model.position import Position
from tms.model.reset import PartitionReset, ResetTarget, planned
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName
from tms.model.transaction import CommittedPosition, PositionChange, PositionKey, check_group


class GroupCalls(BusCalls):
    """The part of a bus that looks after groups. Thread-safe."""

    def _member(self, name: TopicName, options: MemberOptions) -> Member:
        """A new member of a group; for consumers."""
        return Member(
            lambda: f"{gethostname()[:60]}-{getpid()}-{token_hex(8)}".replace("/", "-"),
            name,
            self._transport,
            self._clock,
            options,
            self._leavers,
        )

    def describe_group(self, topic: str, *, group: str) -> GroupInfo:
        """The state of a group in a topic: its members, and the owner, position and lag of each
        partition. Raises `TopicNotFound`, `GroupNotFound`."""
        return self._transport.groups.describe(TopicName.parse(topic), check_group(group))

    def positions(self, topic: str, *, group: str) -> dict[int, Position]:
        """The positions of a group in a topic, by partition."""
        name = TopicName.parse(topic)
        return dict(self._transport.groups.positions(name, check_group(group)))

    def plan_reset(
        self,
        topic: str,
        *,
        group: str,
        to: Start | None = None,
        shift: int = 0,
        partitions: Iterable[int] = (),
    ) -> list[PartitionReset]:
        """The effect of moving a group `to` a position, or by `shift` messages (negative: back), in
        some partitions or in all: for each one the present and the new position, and the number of
        messages that are read again or skipped. Changes nothing; `set_positions` does. Raises
        `TopicNotFound`, `Invalid`, `OffsetOutOfRange`."""
        name = TopicName.parse(topic)
        target = ResetTarget(None if to is None else as_position(to), shift)
        bounds = self._transport.describe_topic(name).partition_infos
        positions: tuple[GroupPartition, ...] = ()
        with suppress(GroupNotFound):  # it is to begin
            positions = self._transport.groups.describe(name, check_group(group)).partitions
        offsets: Mapping[int, int] = {}
        if target.looked_up is not None:
            offsets = self._transport.offsets(name, target.looked_up, Isolation.UNCOMMITTED)
        return planned(target, bounds, positions, offsets, numbers(partitions))

    def set_positions(
        self,
        topic: str,
        positions: Mapping[int, Start | CommittedPosition],
        *,
        group: str,
        expected: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Move the positions of a group, regardless of its consumers: all, or none if one of those
        `expected`, as text (empty: none yet), is not the present one. Metadata replace the former
        ones; `describe_group` returns them. Raises `TopicNotFound`, `Conflict`."""
        name = TopicName.parse(topic)
        if not isinstance(positions, Mapping):
            raise Invalid(
                "Positions are a mapping of partitions to positions, got "
                f"{type(positions).__name__}.",
                field="positions",
            )
        numbers(positions, "positions")
        self._refresh_topic(topic)
        self._transport.groups.move(
            [
                _change(
                    PositionKey(check_group(group), name, partition), start, expected.get(partition)
                )
                for partition, start in positions.items()
            ]
        )

    def forget_positions(
        self,
        topic: str,
        *,
        group: str,
        partitions: Iterable[int] | None = None,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        """Delete the positions of a group in these partitions of a topic, or in all, so that the
        group starts there anew; none if one of those `expected` (up to 100), as text, is not the
        present one. Raises `TopicNotFound`, `Conflict`."""
        name = TopicName.parse(topic)
        some = None if partitions is None else numbers(partitions)
        self._transport.describe_topic(name)
        self._transport.groups.forget_positions(name, check_group(group), some, expected)


def _change(
    key: PositionKey, to: Start | CommittedPosition, expected: str | None
) -> PositionChange:
    if not isinstance(to, CommittedPosition):
        return PositionChange(key, as_position(to), expected)
    return PositionChange(
        key, to.position, expected, metadata=to.metadata, leader_epoch=to.leader_epoch
    )
