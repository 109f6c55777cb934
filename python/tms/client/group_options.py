"""The settings of a consumer's group, and the options of its member."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

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


DeliveryChoice = DeliveryMode | Literal["explicit", "at-most-once", "at-least-once", "exactly-once"]
AssignmentCallback = Callable[[Sequence[int]], object]  # asyncio awaits an awaitable result
DELIVERIES = 5
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 30.0


def _ignore(partitions: Sequence[int]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Group:
    """A group and how a consumer takes part in it; see docs/groups.md.

    `delivery` says when the group's position moves: `explicit` (by `ack`), `at-most-once`,
    `at-least-once` or `exactly-once` (in a transaction). A member that is silent for `session_s`
    loses its partitions. `on_assigned` is called with partitions that were assigned, `on_revoked`
    with those that are to be released or were lost. The others are for `Consumer.handle`: after
    `deliveries_max` failures, with pauses from `backoff_first_s` doubling up to `backoff_max_s`, a
    message goes to the topic `dead_letter` (`""` is TOPIC-GROUP-dead).
    """

    name: str
    delivery: DeliveryChoice = DeliveryMode.EXPLICIT
    session_s: Duration = SESSION_S
    on_assigned: AssignmentCallback | None = None
    on_revoked: AssignmentCallback | None = None
    dead_letter: str | None = None
    deliveries_max: int = DELIVERIES
    backoff_first_s: Duration = BACKOFF_FIRST_S
    backoff_max_s: Duration = BACKOFF_MAX_S


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The options of a member of a group; see `Group`."""

    delivery: DeliveryMode = DeliveryMode.EXPLICIT
    session_s: float = SESSION_S
    on_assigned: AssignmentCallback = _ignore
    on_revoked: AssignmentCallback = _ignore


def as_group(group: str | Group) -> Group:
    """The group with this name, or these settings. Raises `Invalid`."""
    if isinstance(group, str):
        group = Group(group)
    if not isinstance(group, Group):
        raise Invalid(f"A group is a name or a tms.Group, got {group!r:.80}.", field="group")
    if group.name != "":
        check_group(group.name)
    return group


def member_options(group: Group, partitions: Sequence[int] | str | None) -> MemberOptions | None:
    """The options of a consumer that is a member of a group; None for one that has no group, or
    names its partitions. Raises `Invalid` for options that are wrong or do not go together."""
    callbacks = (("on_assigned", group.on_assigned), ("on_revoked", group.on_revoked))
    for name, callback in callbacks:
        if callback is not None and not callable(callback):
            raise Invalid(
                f"{name} is a function that takes partitions, got {callback!r:.80}.", field=name
            )
    if group.delivery not in list(DeliveryMode):
        modes = ", ".join(DeliveryMode)
        raise Invalid(f"A delivery is one of {modes}, got {group.delivery!r}.", field="delivery")
    mode = DeliveryMode(group.delivery)
    session_s = check_session(group.session_s)
    if group.name and partitions is None:
        return MemberOptions(
            mode, session_s, group.on_assigned or _ignore, group.on_revoked or _ignore
        )
    if mode is not DeliveryMode.EXPLICIT:
        raise Invalid(
            f"The delivery {mode} is for members of a group: name a group, and no partitions.",
            field="delivery",
        )
    return None


def check_dead_letter(dead_letter: str | None, options: MemberOptions | None) -> None:
    """Raises `Invalid` if a consumer with these options makes no dead letters."""
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
    """Raises `Invalid` if the handler is no function."""
    if not callable(handler):
        raise Invalid(
            f"A handler is a function of a message, got {handler!r:.80}.", field="handler"
        )
