"""Bodies of log groups: a member's poll, what it is told, and how groups stand."""

from collections.abc import Mapping

import msgspec

from tms.api.operation import Codec
from tms.errors import Invalid
from tms.model.group import GroupStanding
from tms.model.topic import PARTITIONS_MAX

EPOCH_MAX = 2**63 - 1


class StandingBody(msgspec.Struct):
    """What the member is told: its partitions with their epochs, those to let go, how many will
    come, how many members there are, and how many of the others read up to an end."""

    generation: int
    partitions: dict[str, int]
    release: list[int]
    members: int
    coming: int
    reading: int


def _holding_of(holding: Mapping[str, int]) -> dict[int, int]:
    """Epochs by partition. Raises `Invalid`."""
    epochs = {}
    for partition, epoch in holding.items():
        known = partition.isascii() and partition.isdecimal() and len(partition) < 6
        if not known or int(partition) >= PARTITIONS_MAX or not 0 <= epoch <= EPOCH_MAX:
            raise Invalid(
                f"`holding` has epochs by partition, got {partition[:20]!r}.", field="holding"
            )
        epochs[int(partition)] = epoch
    return epochs


def _standing_body(standing: GroupStanding) -> StandingBody:
    return StandingBody(
        standing.generation,
        {str(p): epoch for p, epoch in standing.partitions.items()},
        sorted(standing.release),
        standing.members,
        standing.coming,
        standing.reading,
    )


def _standing(found: StandingBody) -> GroupStanding:
    return GroupStanding(
        found.generation,
        _holding_of(found.partitions),
        frozenset(found.release),
        found.members,
        found.coming,
        found.reading,
    )


HOLDING: Codec[Mapping[int, int]] = Codec(
    dict[str, int], _holding_of, lambda holding: {str(p): epoch for p, epoch in holding.items()}
)
STANDING: Codec[GroupStanding] = Codec(StandingBody, _standing, _standing_body)
