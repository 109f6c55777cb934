"""DeleteGroups: forget groups without members, with their positions.

A group whose positions are all in topics in which the caller may not see it is not found.
"""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall, group_resource
from tms.errors import Forbidden, TMSError
from tms.model.access import Access

VERSIONS = (0, 2)
DeleteGroupsResponse = codec.class_of("DeleteGroupsResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """Delete each group; each has an error of its own."""
    results = []
    for group in call.message.groups_names:
        try:
            code = await call.broker.in_thread(_delete, call, group)
        except TMSError as error:
            code = coordinator_code(error)
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=code))
    return DeleteGroupsResponse(results=results)


def _delete(call: KafkaCall, group: str) -> ErrorCode:
    broker = call.broker
    groups = call.broker.engine.groups
    key = call.coordinated(group, Access.MANAGE)
    topics = [
        name for name in groups.committed(group) if name.namespace == broker.options.namespace
    ]
    try:
        for name in topics:
            call.require(Access.MANAGE, group_resource(name, group))
    except Forbidden:
        if any(call.may(Access.OBSERVE, group_resource(name, group)) for name in topics):
            raise
        has_members = groups.of(group).kind(key) is not None
        return ErrorCode.NON_EMPTY_GROUP if has_members else ErrorCode.GROUP_ID_NOT_FOUND
    code = ErrorCode(broker.groups.shard(key).delete(key))
    if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        return code
    for name in topics:
        groups.forget_positions(name, group)
    return ErrorCode.NONE if topics else code
