"""The plan of a consumer: the arguments of `Bus.consumer`, checked. Shared by both buses."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tms.client.committed import KnownPositions
from tms.client.cursor import Cursor, Start
from tms.client.dead_letters import GroupDeadLetters
from tms.client.group_options import MemberOptions
from tms.client.reading import ConsumerSettings
from tms.model.filter import Filter
from tms.model.position import Position
from tms.model.serializer import Decoder

PartitionChoice = Sequence[int] | Literal["all"] | None


class ConsumerPlan(NamedTuple):
    """A consumer that is to be made. Members of a group have `options` and `dead_letters`."""

    start: Start | Mapping[int, Start]
    partitions: PartitionChoice
    stop_at_end: bool
    where: Filter | None
    serializer: Decoder[Any] | None
    settings: ConsumerSettings
    committed: KnownPositions
    options: MemberOptions | None
    dead_letters: GroupDeadLetters | None

    def cursor(self, positions: Mapping[int, Position]) -> Cursor:
        """The cursor that begins at these positions; a member's has none before it is assigned
        some."""
        begun = positions if self.options is None else {}
        name = str(self.committed.name)
        return Cursor(name, begun, self.stop_at_end, self.where, self.serializer)
