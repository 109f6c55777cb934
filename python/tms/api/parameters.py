"""What operations are given: types of parameters, with their bounds and words, and the queries of
operations that have functions of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from tms.api import commits, queues
from tms.api.operation import Codec, NotSent
from tms.errors import Invalid
from tms.model.delayed import DelayedId
from tms.model.filter import FILTER_BYTES_MAX
from tms.model.group import EPOCH_MAX, check_member
from tms.model.ids import TIME_MS_MAX
from tms.model.queue import DELAY_S_MAX, LEASE_S_MAX, LEASE_S_MIN, check_cause
from tms.model.snapshot import Isolation, Snapshot, View, as_view
from tms.model.topic import PARTITIONS_MAX, Durability, check_namespace
from tms.model.transaction import check_group

TIMEOUT_S = 30.0
TOPICS_DEFAULT = 1_000
BLOCKS_DEFAULT = 20
DELAYED_DEFAULT = 100
LEAVE_S = 2.0  # a session ends by itself
FETCH_BYTES_DEFAULT = 1 << 20
FETCH_MESSAGES_DEFAULT, FETCH_MESSAGES_MAX = 1_000, 10_000
LARGE_BYTES = 1 << 30  # of a body: whatever the service takes


def number_in(name: str, limit: int) -> Callable[[str], int]:
    """Reads a number below a limit that stands in a path. Raises `Invalid`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) < limit):
            raise Invalid(f"{name} is a number below {limit}, got {text[:40]!r}.", field=name)
        return int(text)

    return read


Namespace = Annotated[str, Meta(pattern="^[A-Za-z0-9_]{1,128}$"), Codec(str, check_namespace, str)]
Group = Annotated[str, Meta(pattern="^[^/]{1,255}$"), Codec(str, check_group, str)]
Member = Annotated[str, Meta(pattern="^[^/]{1,128}$"), Codec(str, check_member, str)]
Id = Annotated[int, Meta(pattern="^[0-9]{1,19}$"), Codec(str, commits.transaction_id, str)]
Tokens = Annotated[Sequence[str], Codec(list[str], queues.check_tokens, list)]
TimeoutS = Annotated[float, NotSent]
DelayS = Annotated[float, Meta(ge=0, le=DELAY_S_MAX)]
LeaseS = Annotated[float, Meta(ge=LEASE_S_MIN, le=LEASE_S_MAX)]
Cause = Annotated[str, Codec(str, check_cause, str)]
TransactionToken = Annotated[str, Codec(str, commits.check_token, str)]
CommitId = Annotated[str, Meta(pattern="^([0-9]{1,19}|new)$")]
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="In ms since 1970.")]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
HOLDING: Codec[Mapping[int, int]] = Codec(dict[Partition, Annotated[int, Meta(ge=0, le=EPOCH_MAX)]])
DelayedIdText = Annotated[DelayedId, Meta(pattern="^[0-9]{1,15}-[0-9]{1,15}$")]


def _isolation_text(view: View) -> str:
    return str(Isolation.SNAPSHOT if isinstance(view, Snapshot) else view)


Shown = Annotated[
    View,
    Meta(
        description="Of committed messages, only decided ones.",
        extra_json_schema={"enum": [Isolation.COMMITTED, Isolation.UNCOMMITTED]},
    ),
    Codec(str, as_view, _isolation_text),
]
_DURABLE = "What the messages survive once acknowledged; left out: as the topic says."


class PublishQuery(Struct):
    """How messages are published."""

    durability: Annotated[Durability, Meta(description=_DURABLE)] | None = None
    expect: (
        Annotated[
            str,
            Meta(
                pattern="^(nothing|[0-9A-Fa-f]{40})$",
                description="Store them only if no message of their keys, or without keys none of "
                "the partition, came after this id; `nothing`: none whatsoever.",
            ),
        ]
        | None
    ) = None


class FetchQuery(Struct):
    """The query of a fetch."""

    start: Annotated[
        str,
        Meta(
            description="earliest, latest, id:HEX, after:HEX, time:MS or offset:N for all "
            "partitions, or PARTITION:POSITION separated by commas."
        ),
    ] = "earliest"
    bytes_max: Annotated[
        int, Meta(ge=1, le=queues.FETCH_BYTES_MAX, description="About how much to answer.")
    ] = FETCH_BYTES_DEFAULT
    wait_s: Annotated[
        float, Meta(ge=0, le=queues.WAIT_S_MAX, description="How long to wait for a message.")
    ] = 0.0
    limit: (
        Annotated[int, Meta(ge=1, le=FETCH_MESSAGES_MAX, description="Messages in JSON or Arrow.")]
        | None
    ) = None
    isolation: Annotated[Isolation, Meta(description="What of transactions is shown.")] = (
        Isolation.COMMITTED
    )
    snapshot: (
        Annotated[str, Meta(description="With `snapshot`: base64 of TransactionCodec's.")] | None
    ) = None
    where: (
        Annotated[
            str,
            Meta(
                max_length=FILTER_BYTES_MAX,
                description="Only messages that match, such as `key ^= user- and header.kind = "
                "order`.",
            ),
        ]
        | None
    ) = None


class StageQuery(Struct):
    """Whose blocks are staged."""

    transaction: Annotated[int, Meta(ge=1, description="The id of an open one.")]


class DelayQuery(Struct):
    """When messages are due: one of the first two."""

    delay_s: (
        Annotated[float, Meta(ge=0, le=TIME_MS_MAX / 1_000, description="So long from now on.")]
        | None
    ) = None
    deliver_at_ms: TimeMs | None = None
    durability: Annotated[Durability, Meta(description=_DURABLE)] | None = None
