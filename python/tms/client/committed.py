"""The positions of a consumer's group, as far as the consumer knows them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tms.api.operations import GroupsApi
from tms.errors import Conflict, Fenced, Invalid, TMSError
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicName
from tms.model.transaction import Owner, PositionChange, PositionKey


class Acknowledgement(NamedTuple):
    """Positions to move, and whose knowledge of them to update once that is done."""

    committed: "KnownPositions"
    changes: list[PositionChange]

    def done(self) -> None:
        """The positions are moved."""
        self.committed.note(self.changes)


class KnownPositions:
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
        self._sought: set[int] = set()  # partitions to be committed where they were sought
        self.by_itself = ""

    def forget(self) -> None:
        """Know nothing, and owe nothing."""
        self._positions = {}
        self._sought.clear()
        self.owners, self.owed = {}, {}

    def seek(self, partition: int) -> None:
        """Let the next acknowledgement move the group to the consumer's position in a partition,
        though no message was handed out behind it."""
        self._sought.add(partition)

    def learn(self, positions: Mapping[int, Position]) -> None:
        """Remember the positions of the group."""
        self._positions = {partition: str(at) for partition, at in positions.items()}

    def behind(self, handed_out: Mapping[int, Position]) -> Acknowledgement:
        """The changes that move the group behind the messages that were handed out, each position
        from its known one. Raises `Invalid` without a group."""
        if not self.group:
            raise Invalid("The consumer has no group; make it with bus.consumer(topic, group=…).")
        if self.by_itself:
            raise Invalid(self.by_itself)
        left = {p: position for p, position in handed_out.items() if p not in self.owed}
        return Acknowledgement(self, [*self.owed.values(), *self.changes(left)])

    def changes(
        self, to: Mapping[int, Position], kinds: Collection[PositionKind] = (PositionKind.AFTER,)
    ) -> list[PositionChange]:
        """The position changes that move the group to `to`, without partitions that are there
        already and, unless they were sought, positions of other kinds."""
        return [
            PositionChange(
                PositionKey(self.group, self.name, partition),
                position,
                self._positions.get(partition, ""),
                self.owners.get(partition),
            )
            for partition, position in to.items()
            if (position.kind in kinds or partition in self._sought)
            and self._positions.get(partition) != str(position)
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
            except Conflict as error:  # the next owner may stand there, too
                if isinstance(error, Fenced) or not (unsure and self._stands_there(changes)):
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
        """Remember the position of the group in a partition."""
        self._sought.discard(partition)
        if position is None:
            self._positions.pop(partition, None)
        else:
            self._positions[partition] = str(position)

    def note(self, changes: Iterable[PositionChange]) -> None:
        """Remember positions that were moved."""
        for change in changes:
            self._positions[change.key.partition] = str(change.position)
            self._sought.discard(change.key.partition)
