"""How a consumer takes part in its group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tms.errors import Invalid
from tms.model.group import SESSION_S, check_session
from tms.model.quantity import Duration
from tms.model.transaction import check_group


class DeliveryMode(StrEnum):
    """When the group's position moves behind a message."""

    EXPLICIT = "explicit"  # by `ack`
    AT_MOST_ONCE = "at-most-once"  # before it is handed out
    AT_LEAST_ONCE = "at-least-once"  # once the next one is asked for
    EXACTLY_ONCE = "exactly-once"  # in the transaction that has what was made of it


Told = Callable[[Sequence[int]], None]
AnyTold = Callable[[Sequence[int]], object]  # for asyncio, what is returned may be awaited


def _nobody(partitions: Sequence[int]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How a consumer takes part in its group. The callbacks are told which partitions it got, and
    which it has to let go or has lost."""

    delivery: DeliveryMode = DeliveryMode.EXPLICIT
    session_s: float = SESSION_S
    on_assigned: AnyTold = _nobody
    on_revoked: AnyTold = _nobody


def member_options(
    group: str,
    partitions: Sequence[int] | str | None,
    delivery: str,
    session_s: Duration,
    on_assigned: AnyTold | None,
    on_revoked: AnyTold | None,
) -> MemberOptions | None:
    """The options of a consumer that is a member of a group; None if it is none, because it has no
    group, or names its partitions. Raises `Invalid` for what is wrong or does not go together."""
    if group != "":
        check_group(group)
    for name, told in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
        if told is not None and not callable(told):
            raise Invalid(
                f"{name} is a function that takes partitions, got {told!r:.80}.", field=name
            )
    if delivery not in list(DeliveryMode):
        modes = ", ".join(DeliveryMode)
        raise Invalid(f"A delivery is one of {modes}, got {delivery!r}.", field="delivery")
    session_s = check_session(session_s)
    if group and partitions is None:
        mode = DeliveryMode(delivery)
        return MemberOptions(mode, session_s, on_assigned or _nobody, on_revoked or _nobody)
    if delivery != DeliveryMode.EXPLICIT:
        raise Invalid(
            f"The delivery {delivery} is for members of a group: name a group, and no partitions.",
            field="delivery",
        )
    return None


def check_letters(dead_letter: str | None, options: MemberOptions | None) -> None:
    """Raise `Invalid` for dead letters of a consumer that has none."""
    if dead_letter is None:
        return
    if options is None:
        raise Invalid(
            "dead_letter is for members of a group: name a group, and no partitions.",
            field="dead_letter",
        )
    if options.delivery is DeliveryMode.AT_MOST_ONCE:
        raise Invalid(
            "With at-most-once the group is behind a message before it is handled, so there are no "
            "dead letters: choose another delivery, or leave dead_letter out.",
            field="dead_letter",
        )


def check_handler(handler: object) -> None:
    """Raise `Invalid` for what cannot be called."""
    if not callable(handler):
        raise Invalid(
            f"A handler is a function of a message, got {handler!r:.80}.", field="handler"
        )
