"""OffsetFetch: the positions of a group, as offsets, with their metadata.

A position that one of TMS's own clients has moved is an id; the offset of its message is told. A
client that wants stable positions is refused those that a transaction may still move.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tms.access.grants import some_group
from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of, coordinator_code
from tms.compat.kafka.requests import KafkaCall, group_resource, repeated
from tms.errors import Forbidden, StorageUnavailable, TMSError
from tms.model.access import Access
from tms.model.position import PositionKind
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName
from tms.model.transaction import CommittedPosition

VERSIONS = (1, 9)
OffsetFetchResponse = codec.class_of("OffsetFetchResponse")
_WITH_CODE = 2  # the version from which on a response has an error code for the group
_LISTS = 8  # the version from which on a request has several groups
_Committed = Mapping[TopicName, Mapping[int, CommittedPosition]]


async def answer(call: KafkaCall) -> KafkaMessage:
    """The positions of each group."""
    message = call.message
    if call.version < _LISTS:
        made = OffsetFetchResponse.OffsetFetchResponseTopic
        part = made.OffsetFetchResponsePartition
        code, topics = await _positions(call, message.group_id, message.topics, (made, part))
        if code and call.version < _WITH_CODE:
            topics = [_refused(one, code, (made, part)) for one in message.topics]
        return OffsetFetchResponse(topics=topics, error_code=code)
    groups = []
    group_made = OffsetFetchResponse.OffsetFetchResponseGroup
    made = group_made.OffsetFetchResponseTopics
    part = made.OffsetFetchResponsePartitions
    twice = repeated(one.group_id for one in message.groups)
    for one in message.groups:
        if one.group_id in twice:  # else the answer could have any size
            groups.append(group_made(group_id=one.group_id, error_code=ErrorCode.INVALID_REQUEST))
            continue
        code, topics = await _positions(call, one.group_id, one.topics, (made, part))
        groups.append(group_made(group_id=one.group_id, topics=topics, error_code=code))
    return OffsetFetchResponse(groups=groups)


async def _positions(
    call: KafkaCall, group: str, wanted: list[KafkaMessage] | None, made: tuple[Any, Any]
) -> tuple[ErrorCode, list[KafkaMessage]]:
    """The error code of a group, and its positions in these topics, or in all of the namespace."""
    broker = call.broker
    refused: dict[str, ErrorCode] = {}
    try:
        call.require(Access.OBSERVE, some_group(broker.options.namespace, group))
        call.require_coordinator(group)
        names = None if wanted is None else _names(call, group, wanted, refused)
        looked = partial(_looked, broker, group, names, call.message.require_stable)
        committed, unstable = await broker.in_thread(looked)
    except TMSError as error:
        return coordinator_code(error), []
    here = {
        name.topic: at
        for name, at in committed.items()
        if name.namespace == broker.options.namespace
        and call.may(Access.OBSERVE, group_resource(name, group))
    }
    asked = (
        {name: sorted(at) for name, at in here.items()}
        if wanted is None
        else {one.name: one.partition_indexes for one in wanted}
    )
    topics = []
    for name, partitions in asked.items():
        at = here.get(name, {})
        parts = []
        for number in partitions:
            code = refused.get(name, ErrorCode.NONE)
            if not code and unstable(broker.topic(name), number):
                code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            if code:
                parts.append(made[1](partition_index=number, committed_offset=-1, error_code=code))
            else:
                parts.append(await _told(broker, name, number, at.get(number), made[1]))
        topics.append(made[0](name=name, partitions=parts))
    return ErrorCode.NONE, topics


def _refused(topic: KafkaMessage, code: ErrorCode, made: tuple[Any, Any]) -> KafkaMessage:
    parts = [
        made[1](partition_index=number, committed_offset=-1, error_code=code)
        for number in topic.partition_indexes
    ]
    return made[0](name=topic.name, partitions=parts)


def _names(
    call: KafkaCall, group: str, wanted: list[KafkaMessage], refused: dict[str, ErrorCode]
) -> list[TopicName]:
    """The topics whose positions the caller may see; `refused` gets the codes of the others."""
    names = []
    for one in wanted:
        try:
            names.append(call.group_of(one.name, group, Access.OBSERVE))
        except Forbidden as error:
            refused[one.name] = code_of(error)
    return names


def _looked(
    broker: Broker, group: str, names: list[TopicName] | None, stable: bool
) -> tuple[_Committed, Callable[[TopicName, int], bool]]:
    """The positions of a group, and a function that says which of them are not stable."""
    engine = broker.engine
    # A transaction that ends between the two looks has moved its positions by the second one.
    pending = broker.producers.pending(group) if stable else set()
    try:
        committed = engine.groups.committed(group, names, stable)
    except StorageUnavailable:
        if not stable:
            raise
        return engine.groups.committed(group, names), lambda name, number: True
    return committed, lambda name, number: (name, number) in pending


async def _told(
    broker: Broker, topic: str, partition: int, committed: CommittedPosition | None, made: Any
) -> KafkaMessage:
    result = made(partition_index=partition, committed_offset=-1, metadata="")
    if committed is None:
        return result
    result.metadata = committed.metadata
    result.committed_leader_epoch = committed.leader_epoch
    position = committed.position
    if position.kind is PositionKind.OFFSET:
        result.committed_offset = position.number
        return result
    name = broker.topic(topic)
    topics = broker.engine.topics
    try:
        offsets = await broker.in_thread(
            lambda: topics.port(name, partition).offsets(
                name, [partition], position, Isolation.UNCOMMITTED
            )
        )
        result.committed_offset = offsets[partition]
    except TMSError as error:
        result.error_code = code_of(error)
    return result
