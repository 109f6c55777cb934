"""ListGroups: the groups that this broker coordinates, with members of Kafka's protocol or with
positions only."""

from functools import partial

from tms.access.grants import some_group
from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall, group_resource
from tms.groups.classic_calls import State
from tms.model.access import Access
from tms.model.topic import TopicName

VERSIONS = (0, 5)
ListGroupsResponse = codec.class_of("ListGroupsResponse")
_TYPE = "classic"
PAGE = 1_000  # groups that are looked at together


async def answer(call: KafkaCall) -> KafkaMessage:
    """The groups in the wanted states and of the wanted types."""
    message = call.message
    broker = call.broker
    members = broker.groups.all(broker.options.namespace)
    sees = partial(call.may, Access.OBSERVE)
    found = {
        one.group: (one.protocol_type, one.state)
        for one in members
        if sees(some_group(broker.options.namespace, one.group))
    }
    for group in await broker.in_thread(lambda: _with_positions(call)):
        found.setdefault(group, ("", State.EMPTY))
    states = {state.lower() for state in message.states_filter}
    types = {type.lower() for type in message.types_filter}
    groups = [
        ListGroupsResponse.ListedGroup(
            group_id=group, protocol_type=protocol, group_state=state, group_type=_TYPE
        )
        for group, (protocol, state) in sorted(found.items())
        if (not states or state.lower() in states) and (not types or _TYPE in types)
    ]
    return ListGroupsResponse(groups=groups)


def _with_positions(call: KafkaCall) -> set[str]:
    """The groups without members of TMS's own protocol that have positions in the namespace."""
    broker = call.broker
    found = set()
    shards = broker.engine.shards.held
    after: tuple[str, str] | None = None
    while True:
        page = broker.engine.groups.page(broker.options.namespace, after, PAGE, shards)
        found |= {
            one.group
            for one in page
            if not one.members
            and call.may(Access.OBSERVE, group_resource(TopicName.parse(one.topic), one.group))
        }
        if len(page) < PAGE:
            return found
        after = (TopicName.parse(page[-1].topic).topic, page[-1].group)
