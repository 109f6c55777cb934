"""Bodies of log groups: a member's poll, what it is told, and how groups stand."""

from collections.abc import Mapping

import msgspec

from tms.api import bodies
from tms.errors import Invalid
from tms.model.group import SESSION_S, GroupStanding, GroupSummary
from tms.model.message import Buffer
from tms.model.topic import PARTITIONS_MAX

EPOCH_MAX = 2**63 - 1


class PollBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """POST …/members/{member}: it is there. `holding` has its partitions with their epochs;
    `reading` says that it reads up to an end that it has not reached."""

    session_s: float = SESSION_S
    holding: dict[str, int] = {}
    reading: bool = False


class StandingBody(msgspec.Struct):
    """What the member is told: its partitions with their epochs, those to let go, how many will
    come, how many members there are, and how many of the others read up to an end."""

    generation: int
    partitions: dict[str, int]
    release: list[int]
    members: int
    coming: int
    reading: int


class GroupsBody(msgspec.Struct):
    """The groups of a topic."""

    groups: list[GroupSummary]


def holding_of(holding: Mapping[str, int]) -> dict[int, int]:
    """Epochs by partition. Raises `Invalid`."""
    found = {}
    for partition, epoch in holding.items():
        known = partition.isascii() and partition.isdecimal() and len(partition) < 6
        if not known or int(partition) >= PARTITIONS_MAX or not 0 <= epoch <= EPOCH_MAX:
            raise Invalid(
                f"`holding` has epochs by partition, got {partition[:20]!r}.", field="holding"
            )
        found[int(partition)] = epoch
    return found


def encode_poll(session_s: float, holding: Mapping[int, int], reading: bool) -> bytes:
    """A member's poll."""
    return bodies.encode(PollBody(session_s, {str(p): e for p, e in holding.items()}, reading))


def standing_body(standing: GroupStanding) -> StandingBody:
    """What a member is told."""
    return StandingBody(
        standing.generation,
        {str(p): epoch for p, epoch in standing.partitions.items()},
        sorted(standing.release),
        standing.members,
        standing.coming,
        standing.reading,
    )


def decode_standing(body: Buffer) -> GroupStanding:
    """What a member is told. Raises `Malformed`."""
    found = bodies.decode(body, StandingBody)
    return GroupStanding(
        found.generation,
        holding_of(found.partitions),
        frozenset(found.release),
        found.members,
        found.coming,
        found.reading,
    )
