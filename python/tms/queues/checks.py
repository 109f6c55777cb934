"""Checks of the arguments of queues, and the errors for wrong ones."""

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

from tms.errors import Invalid, QueueNotFound, TooLarge
from tms.model.queue import TOKENS_MAX, QueueSettings, Token, dead_letter_topic
from tms.model.topic import TopicName

_COUNT = attrgetter("count")


def parse_tokens(tokens: Sequence[str]) -> list[Token]:
    """Parse the tokens of a call, which name at most `TOKENS_MAX` messages, whatever they join.
    Raises `Invalid`, `TooLarge`."""
    if isinstance(tokens, str) or not tokens:
        raise Invalid(f"Give a list of 1 to {TOKENS_MAX} tokens.", field="tokens")
    named = len(tokens)
    if named <= TOKENS_MAX:
        parsed = [*map(Token.parse, tokens)]
        named = sum(map(_COUNT, parsed))
    if named > TOKENS_MAX:
        raise TooLarge(
            f"One request names at most {TOKENS_MAX} messages, not {named}; send fewer at once."
        )
    return parsed


def check_dead_letter(group: str, topic: TopicName, settings: QueueSettings) -> None:
    """Raises `Invalid` when the dead letters would go to the topic itself."""
    if dead_letter_topic(group, topic, settings.dead_letter) == topic:
        raise Invalid(
            f"The dead letters of a queue of {topic} cannot go to {topic} itself.",
            field="dead_letter",
        )


def differences(current: QueueSettings, wanted: QueueSettings) -> str:
    """The settings of a queue that differ from the wanted ones, in words."""
    return ", ".join(
        f"{field.name} is {getattr(current, field.name)!r}, not {getattr(wanted, field.name)!r}"
        for field in fields(current)
        if getattr(current, field.name) != getattr(wanted, field.name)
    )


def not_found(group: str, topic: TopicName) -> QueueNotFound:
    """The error for a queue that does not exist."""
    return QueueNotFound(
        f"The topic {topic} has no queue {group[:255]!r}. "
        "Declare it, or list the queues to find it.",
        group=group,
        topic=str(topic),
    )
