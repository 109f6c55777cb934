"""A member of a group of Kafka's classic protocol, and the group as its journal keeps it.

    key      GROUP/NAMESPACE:_kafka
    value    [0, [], [1, generation, protocol type, protocol, leader, [member, …]]]
             [0, [], nil]    the group has no members, or is not kept
    member   [id, instance, [client id, host], [[protocol, metadata], …], session ms, rebalance ms,
              assignment]

The values are MessagePack. A release without kept groups takes such an entry for a change without
edits of a group in a topic `_kafka`, and ignores it.

Invariants

* Only a group whose leader has assigned is kept; all its members support its protocol.
* A value of another format is no error: the group is not restored, and its members join again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tms.errors import DataCorrupt, TMSError
from tms.groups.classic_calls import ENTRY_BYTES, ClassicKey, Client, JoinRequest
from tms.model.topic import TopicName
from tms.runtime.decoding import msgpack_decoder

_TOPIC = "_kafka"
_FORMAT = 1


class KeptMember(msgspec.Struct, frozen=True, array_like=True):
    """A member in the journal."""

    id: str
    instance: str | None
    client: Client
    protocols: tuple[tuple[str, bytes], ...]  # by preference
    session_ms: int
    rebalance_ms: int
    assignment: bytes


class KeptGroup(msgspec.Struct, frozen=True, array_like=True, tag=_FORMAT):
    """A group in the journal: the generation that its members are in, or are about to be told."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[KeptMember, ...]  # in the order in which they came


class KeptEntry(NamedTuple):
    """An entry of the journal. `value` is None if the group is not kept from there on."""

    key: ClassicKey
    value: bytes | None


@dataclass(slots=True)
class ClassicMember:
    """A member. `until_ms` is the end of its session, which does not pass while the member waits
    for an answer, except for a new member that waits for its first one."""

    id: str
    instance: str | None
    client: Client
    protocols: dict[str, bytes]  # by preference
    session_ms: int
    rebalance_ms: int
    until_ms: int
    is_new: bool = True  # no join of it has been answered
    knows_id: bool = True  # the client can repeat its first join under the same id or instance
    assignment: bytes = b""

    @property
    def size(self) -> int:
        """The bytes counted for the member, as `JoinRequest.size` does, with its assignment."""
        names = len(self.id) + len(self.instance or "") + sum(map(len, self.client))
        protocols = sum(len(name) + len(metadata) for name, metadata in self.protocols.items())
        entries = ENTRY_BYTES * (1 + len(self.protocols))
        return entries + names + protocols + len(self.assignment)

    def kept(self) -> KeptMember:
        """The member for the journal."""
        return KeptMember(
            self.id,
            self.instance,
            self.client,
            tuple(self.protocols.items()),
            self.session_ms,
            self.rebalance_ms,
            self.assignment,
        )

    @classmethod
    def restored(cls, kept: KeptMember, now_ms: int) -> "ClassicMember":
        """A member of the journal, with a new session."""
        return cls(
            kept.id,
            kept.instance,
            kept.client,
            dict(kept.protocols),
            kept.session_ms,
            kept.rebalance_ms,
            now_ms + kept.session_ms,
            is_new=False,
            assignment=kept.assignment,
        )


def protocols_of(request: JoinRequest) -> dict[str, bytes]:
    """The protocols of a member, each once."""
    protocols: dict[str, bytes] = {}
    for name, metadata in request.protocols:
        protocols.setdefault(name, metadata)
    return protocols


# -- the journal -----------------------------------------------------------------------------------


class _Entry(msgspec.Struct, array_like=True):
    """A value, as far as every format has it. Changes of TMS's own groups have two elements."""

    generation: int
    edits: msgspec.Raw
    group: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgpack_decoder(_Entry)
_group_decoder = msgpack_decoder(KeptGroup)
_GONE = _encode(None)


def encode_group(group: KeptGroup) -> bytes:
    """The value of a group that is kept."""
    return _encode((0, (), group))


def encode_kept(entry: KeptEntry) -> tuple[bytes, bytes]:
    """Key and value of the journal's message."""
    namespace, group = entry.key
    value = _encode((0, (), None)) if entry.value is None else entry.value
    return f"{group}/{namespace}:{_TOPIC}".encode(), value


def decode_kept(key: bytes | None, value: bytes | None) -> KeptEntry | None:
    """A message of the journal; None if it is about a group of TMS's own protocol. Raises
    `DataCorrupt`."""
    if key is None or value is None or not key.endswith(f":{_TOPIC}".encode()):
        return None
    try:
        entry = _decoder.decode(value)
        if entry.group is msgspec.UNSET:  # of a topic with that name
            return None
        group, topic = key.decode().rsplit("/", 1)
        of = ClassicKey(TopicName.parse(topic).namespace, group)
    except (ValueError, msgspec.MsgspecError, TMSError) as exc:
        raise DataCorrupt(
            f"An entry in the journal of groups cannot be read: {key!r:.80}. Run `tms fsck`."
        ) from exc
    return KeptEntry(of, None if bytes(entry.group) == _GONE else value)


def decode_group(value: bytes) -> KeptGroup | None:
    """The group of a value; None if another release made it in a format of its own."""
    try:
        raw = _decoder.decode(value).group
        group = _group_decoder.decode(raw) if isinstance(raw, msgspec.Raw) else None
    except msgspec.MsgspecError:
        return None
    return group if group is not None and _is_whole(group.protocol, group.members) else None


def _is_whole(protocol: str, members: Iterable[KeptMember]) -> bool:
    """True if there are members, and all of them support the protocol."""
    supports = [any(name == protocol for name, _ in one.protocols) for one in members]
    return bool(supports) and all(supports)
