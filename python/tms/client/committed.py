"""Where a consumer's group stands, as far as the consumer knows."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tms.api.operations import GroupsApi
from tms.errors import Conflict, Invalid, TMSError
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicName
from tms.model.transaction import Owner, PositionChange, PositionKey


class Acknowledgement(NamedTuple):
    """Positions to move, and whose knowledge of them to update once that is done."""

    committed: "CommittedPositions"
    changes: list[PositionChange]

    def done(self) -> None:
        """They are moved."""
        self.committed.note(self.changes)


class CommittedPositions:
    """A group's positions in a topic. Not thread-safe.

    Of a member of the group `owners` says what makes its changes count, and `owed` has those that
    it did not make before it lost the partition: they fail, and everything that goes with them.
    `by_itself` says why nothing is to be acknowledged, if so.
    """

    def __init__(
        self,
        name: TopicName,
        group: str,
        port: GroupsApi,
    ) -> None:
        self.group = group
        self.name = name
        self._port = port
        self._positions: dict[int, str] = {}
        self.owners: dict[int, Owner] = {}
        self.owed: dict[int, PositionChange] = {}
        self.by_itself = ""

    def forget(self) -> None:
        """Know nothing, and owe nothing."""
        self._positions = {}
        self.owners, self.owed = {}, {}

    def learn(self, positions: Mapping[int, Position]) -> None:
        """The group stands there."""
        self._positions = {partition: str(at) for partition, at in positions.items()}

    def behind(self, handed_out: Mapping[int, Position]) -> Acknowledgement:
        """What moves the group behind what was handed out, each position from where it is known to
        stand. Raises `Invalid` without a group."""
        if not self.group:
            raise Invalid("The consumer has no group; make it with bus.consumer(topic, group=…).")
        if self.by_itself:
            raise Invalid(self.by_itself)
        left = {p: position for p, position in handed_out.items() if p not in self.owed}
        return Acknowledgement(self, [*self.owed.values(), *self.changes(left)])

    def changes(
        self, to: Mapping[int, Position], kinds: Collection[PositionKind] = (PositionKind.AFTER,)
    ) -> list[PositionChange]:
        """What moves the group there, where the position is of such a kind and it is not there."""
        return [
            PositionChange(
                PositionKey(self.group, self.name, partition),
                position,
                self._positions.get(partition, ""),
                self.owners.get(partition),
            )
            for partition, position in to.items()
            if position.kind in kinds and self._positions.get(partition) != str(position)
        ]

    def move(self, changes: Sequence[PositionChange]) -> Callable[[], None]:
        """A call that moves positions in the service, all or none, and may be made again when it
        has failed: one whose answer was lost may have moved them. It raises `Conflict` when others
        have moved them, `Fenced` when the partitions are others'."""
        unsure = False

        def attempt() -> None:
            nonlocal unsure
            try:
                self._port.move(changes)
            except Conflict:
                if not (unsure and self._stands_there(changes)):
                    raise
            except TMSError as error:
                unsure = unsure or error.retriable
                raise

        return attempt

    def _stands_there(self, changes: Iterable[PositionChange]) -> bool:
        stored = self._port.positions(self.name, self.group)
        return all(stored.get(one.key.partition) == one.position for one in changes)

    def known(self, partition: int) -> str:
        """The position that the group is known to have; "" for none."""
        return self._positions.get(partition, "")

    def know(self, partition: int, position: Position | None) -> None:
        """The group stands there in a partition."""
        if position is None:
            self._positions.pop(partition, None)
        else:
            self._positions[partition] = str(position)

    def note(self, changes: Iterable[PositionChange]) -> None:
        """These positions are so now."""
        for change in changes:
            self._positions[change.key.partition] = str(change.position)
