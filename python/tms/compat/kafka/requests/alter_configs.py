"""AlterConfigs: all settings of topics at once; those that are left out get their defaults."""

from tms.compat.kafka import codec
from tms.compat.kafka.altering import altered
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.topics import all_changes_of

VERSIONS = (0, 2)
AlterConfigsResponse = codec.class_of("AlterConfigsResponse")
_Result = AlterConfigsResponse.AlterConfigsResourceResponse


async def answer(call: KafkaCall) -> KafkaMessage:
    """Replace the settings of each topic; each has an error of its own."""
    results = await altered(
        call, lambda one, _: all_changes_of({two.name: two.value for two in one.configs}), _Result
    )
    return AlterConfigsResponse(responses=results)
