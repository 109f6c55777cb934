"""Changes of settings: the part that AlterConfigs and IncrementalAlterConfigs have in common."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import RESOURCE, KafkaCall, each_once, repeated
from tms.compat.kafka.topics import TOPIC_RESOURCE, with_changes
from tms.errors import Invalid
from tms.model.access import Access
from tms.model.topic import TopicSettings

# The changes that a resource of a request makes to the settings of its topic, by their fields.
Changes = Callable[[KafkaMessage, TopicSettings], Mapping[str, object]]


async def altered(call: KafkaCall, changes: Changes, made: Any) -> list[KafkaMessage]:
    """Change the settings of each topic that a request names, or only check the changes if it says
    so; returns a result, an object of `made`, for each."""
    fresh = partial(made, error_message=None)
    return await each_once(call.message.resources, RESOURCE, fresh, partial(_alter, call, changes))


async def _alter(call: KafkaCall, changes: Changes, one: KafkaMessage, _: KafkaMessage) -> None:
    broker = call.broker
    if one.resource_type != TOPIC_RESOURCE:
        raise Invalid(
            "Only settings of topics are changed here. Those of the service are in its "
            "configuration; restart it to change them."
        )
    for name in repeated(config.name for config in one.configs):
        raise Invalid(f"The request has the setting {name!r:.80} more than once.")
    topic = call.topic(one.resource_name, Access.MANAGE)
    record = await broker.in_thread(lambda: broker.record(topic))
    wanted = changes(one, record.settings)
    with_changes(record.settings, wanted)  # raises if they cannot be
    if wanted and not call.message.validate_only:
        await broker.in_thread(broker.engine.update_topic, topic, wanted)
