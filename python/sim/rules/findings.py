"""The kinds of findings of a checker."""

from enum import StrEnum
from typing import NamedTuple

NEVER = 1 << 62


class Kind(StrEnum):
    """A kind of violation."""

    LOST = "lost write"
    DUPLICATE = "duplicate"
    ABORTED = "aborted read"
    INTERMEDIATE = "intermediate read"
    TORN = "torn transaction"
    UNSTABLE = "unstable order"
    REUSED = "id reuse"
    REGRESSION = "position regression"
    INVENTED = "invented"
    UPDATE = "lost update"
    AGAIN = "again"
    SHARED = "shared lease"
    RISEN = "risen"
    UNERASED = "not erased"
    EARLY = "early"
    CANCELLED = "wrong cancel"
    LISTED = "wrong list"
    STOPPED = "stopped early"
    OVERTAKEN = "overtaken"
    STRAYED = "strayed"
    OWNERS = "several owners"
    FENCED = "fenced commit"
    KINDS = "members of two protocols"


class Finding(NamedTuple):
    """A violation."""

    kind: Kind
    what: str
