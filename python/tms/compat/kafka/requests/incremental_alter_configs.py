"""IncrementalAlterConfigs: single settings of topics."""

from tms.compat.kafka import codec
from tms.compat.kafka.altering import altered
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.topics import changes_of, elements, list_of
from tms.errors import Invalid
from tms.model.topic import TopicSettings

VERSIONS = (0, 1)
IncrementalAlterConfigsResponse = codec.class_of("IncrementalAlterConfigsResponse")
_Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_SET = 0
_DELETE = 1
_APPEND = 2
_SUBTRACT = 3


async def answer(call: KafkaCall) -> KafkaMessage:
    """Change settings of each topic, all that are named or none; each has an error of its own."""
    results = await altered(call, _changes, _Result)
    return IncrementalAlterConfigsResponse(responses=results)


def _changes(one: KafkaMessage, settings: TopicSettings) -> dict[str, object]:
    return changes_of({config.name: _value(config, settings) for config in one.configs})


def _value(config: KafkaMessage, settings: TopicSettings) -> str | None:
    """The value that a setting gets; None: its default. Raises `Invalid`."""
    operation = config.config_operation
    if operation == _DELETE:
        return None
    if operation not in (_SET, _APPEND, _SUBTRACT):
        raise Invalid(
            f"A setting is set (0), deleted (1), added to (2) or taken from (3), got {operation}."
        )
    if config.value is None:
        raise Invalid(f"{config.name!r:.80} has no value; delete the setting to get its default.")
    if operation == _SET:
        return str(config.value)
    present = list_of(settings, config.name)
    named = elements(config.value)
    if operation == _APPEND:
        return ",".join(dict.fromkeys((*present, *named)))
    return ",".join(part for part in present if part not in named)
