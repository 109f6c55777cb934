"""DescribeGroups: the state and the members of groups."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall, group_resource
from tms.errors import TMSError
from tms.groups.classic_calls import State
from tms.model.access import Access

VERSIONS = (0, 5)
DescribeGroupsResponse = codec.class_of("DescribeGroupsResponse")
_Group = DescribeGroupsResponse.DescribedGroup


async def answer(call: KafkaCall) -> KafkaMessage:
    """Each group, once; one that has only positions is empty, one that has nothing is dead."""
    groups = []
    for group in dict.fromkeys(call.message.groups):
        try:
            groups.append(await _described(call, group))
        except TMSError as error:
            groups.append(_Group(group_id=group, error_code=coordinator_code(error)))
    return DescribeGroupsResponse(groups=groups)


async def _described(call: KafkaCall, group: str) -> KafkaMessage:
    broker = call.broker
    key = call.coordinated(group, Access.OBSERVE)
    found = broker.groups.do(key, lambda groups, _: (groups.describe(key), ()))
    state = found.state
    if state is State.DEAD:
        committed = await broker.in_thread(broker.engine.groups.committed, group)
        is_seen = any(
            name.namespace == broker.options.namespace
            and call.may(Access.OBSERVE, group_resource(name, group))
            for name in committed
        )
        state = State.EMPTY if is_seen else State.DEAD
    return _Group(
        error_code=ErrorCode.NONE,
        group_id=group,
        group_state=state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=[
            _Group.DescribedGroupMember(
                member_id=one.member,
                group_instance_id=one.instance,
                client_id=one.client.id,
                client_host=one.client.host,
                member_metadata=one.metadata,
                member_assignment=one.assignment,
            )
            for one in found.members
        ],
    )
