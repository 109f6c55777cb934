"""Where a consumer's group stands, as far as the consumer knows."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tms.errors import Invalid
from tms.model.position import Kind, Position
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange, PositionKey


class Acknowledgement(NamedTuple):
    """Positions to move, and whose knowledge of them to update once that is done."""

    standing: "Standing"
    changes: list[PositionChange]

    def done(self) -> None:
        """They are moved."""
        self.standing.note(self.changes)


class Standing:
    """A group's positions in a topic. Not thread-safe."""

    def __init__(self, group: str, name: TopicName, positions: Mapping[int, Position]) -> None:
        self.group = group
        self._name = name
        self._positions = {partition: str(at) for partition, at in positions.items()}

    def learn(self, positions: Mapping[int, Position]) -> None:
        """The group stands there."""
        self._positions = {partition: str(at) for partition, at in positions.items()}

    def behind(self, handed_out: Mapping[int, Position]) -> Acknowledgement:
        """What moves the group behind what was handed out, each position from where it is known to
        stand. Raises `Invalid` without a group."""
        if not self.group:
            raise Invalid("The consumer has no group; make it with bus.consumer(topic, group=…).")
        changes = [
            PositionChange(
                PositionKey(self.group, self._name, partition),
                position,
                self._positions.get(partition, ""),
            )
            for partition, position in handed_out.items()
            if position.kind is Kind.AFTER and self._positions.get(partition) != str(position)
        ]
        return Acknowledgement(self, changes)

    def note(self, changes: Iterable[PositionChange]) -> None:
        """These positions are so now."""
        for change in changes:
            self._positions[change.key.partition] = str(change.position)
