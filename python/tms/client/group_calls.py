"""The methods of a bus for groups, apart from consuming."""

from collections.abc import Iterable, Mapping
from os import getpid
from secrets import token_hex
from socket import gethostname

from tms.client.calls import BusCalls
from tms.client.cursor import Start, as_position, numbers
from tms.client.group_options import MemberOptions
from tms.client.member import Member
from tms.errors import Invalid
from tms.model.group import GroupInfo
from tms.model.position import Position
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

    def set_positions(
        self, topic: str, positions: Mapping[int, Start | CommittedPosition], *, group: str
    ) -> None:
        """Move the positions of a group, regardless of its consumers. Metadata replace the former
        ones; `describe_group` returns them. Raises `TopicNotFound`."""
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
                _change(PositionKey(check_group(group), name, partition), start)
                for partition, start in positions.items()
            ]
        )

    def forget_positions(
        self, topic: str, *, group: str, partitions: Iterable[int] | None = None
    ) -> None:
        """Delete the positions of a group in these partitions of a topic, or in all, so that the
        group starts there anew. Raises `TopicNotFound`."""
        name = TopicName.parse(topic)
        some = None if partitions is None else numbers(partitions)
        self._transport.describe_topic(name)
        self._transport.groups.forget_positions(name, check_group(group), some)


def _change(key: PositionKey, to: Start | CommittedPosition) -> PositionChange:
    if not isinstance(to, CommittedPosition):
        return PositionChange(key, as_position(to))
    return PositionChange(key, to.position, metadata=to.metadata, leader_epoch=to.leader_epoch)
