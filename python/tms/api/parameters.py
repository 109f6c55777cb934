"""Types of the parameters of operations, with their bounds and descriptions, and the queries of
operations with functions of their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from tms.api import commits, queues
from tms.api.operation import NAMESPACE_TEXT, Codec, NotSent
from tms.errors import Invalid
from tms.model.dead_letters import LETTER_ID, LETTERS_MAX, LetterId
from tms.model.filter import FILTER, FILTER_BYTES_MAX
from tms.model.group import EPOCH_MAX, MEMBER_CHARS_MAX, SESSION_S_MAX, SESSION_S_MIN, check_member
from tms.model.ids import MESSAGE_ID, TIME_MS_MAX
from tms.model.position import POSITION, Position
from tms.model.quantity import SECONDS_MAX
from tms.model.queue import (
    CAUSE_CHARS_MAX,
    DELAY_S_MAX,
    DELIVERY_TOKEN,
    LEASE_S_MAX,
    LEASE_S_MIN,
    TOKENS_MAX,
    check_cause,
)
from tms.model.snapshot import Isolation, ReadIsolation, Snapshot, as_isolation
from tms.model.spelling import (
    decimal_up_to,
    either,
    keyed_by,
    one_of,
    over,
    shaped,
    spelled,
    within,
)
from tms.model.topic import PARTITIONS_MAX, TOPIC, Durability, check_namespace
from tms.model.transaction import GROUP_CHARS_MAX, TIMEOUT_S_MAX, TOKEN, UNSEEN, check_group

TIMEOUT_S = 30.0
TOPICS_DEFAULT = 1_000
BLOCKS_DEFAULT = 20
DELAYED_DEFAULT = 100
PRODUCERS_DEFAULT = 100
KEY_CHARS_MAX = 255  # of an Idempotency-Key
LEAVE_S = 2.0  # a session ends by itself
FETCH_BYTES_DEFAULT = 1 << 20
FETCH_MESSAGES_DEFAULT, FETCH_MESSAGES_MAX = 1_000, 10_000
LARGE_BYTES = 1 << 30  # of a body: whatever the service takes


def number_in(name: str, limit: int) -> Callable[[str], int]:
    """Returns a reader of numbers below a limit in a path. The reader raises `Invalid`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) < limit):
            raise Invalid(f"{name} is a number below {limit}, got {text[:40]!r}.", field=name)
        return int(text)

    return read


def name_in_path(chars_max: int) -> str:
    """Pattern of names in a path: no walk through directories, nothing encoded twice."""
    any_, plain = f"[^{UNSEEN}%]", rf"[^{UNSEEN}%.]"
    behind_dots = rf"[^{UNSEEN}%\\]"
    return (
        f"(?:{plain}{any_}{{0,{chars_max - 1}}}"
        rf"|\.[^{UNSEEN}%.\\]{any_}{{0,{chars_max - 2}}}"
        rf"|\.\.{behind_dots}{any_}{{0,{chars_max - 3}}})"
    )


Namespace = Annotated[str, Codec(NAMESPACE_TEXT, check_namespace, str)]
GroupName = Annotated[str, spelled(name_in_path(GROUP_CHARS_MAX)), Codec(str, check_group, str)]
MemberName = Annotated[str, spelled(name_in_path(MEMBER_CHARS_MAX)), Codec(str, check_member, str)]
Id = Annotated[int, Meta(pattern="^[0-9]{1,19}$"), Codec(str, commits.transaction_id, str)]
Tokens = Annotated[
    Sequence[str],
    shaped(minItems=1, maxItems=TOKENS_MAX),
    Codec(list[Annotated[str, spelled(DELIVERY_TOKEN)]], list, list),
]
Letters = Annotated[
    Sequence[LetterId],
    shaped(maxItems=LETTERS_MAX),
    Codec(
        list[Annotated[str, spelled(LETTER_ID)]],
        lambda texts: [LetterId.parse(one) for one in texts],
        lambda letters: [str(one) for one in letters],
    ),
]
TimeoutS = Annotated[float, NotSent]
DelayS = Annotated[float, Meta(ge=0, le=DELAY_S_MAX)]
LeaseS = Annotated[float, Meta(ge=LEASE_S_MIN, le=LEASE_S_MAX)]
SessionS = Annotated[float, within(SESSION_S_MIN, SESSION_S_MAX)]
Cause = Annotated[str, shaped(maxLength=CAUSE_CHARS_MAX), Codec(str, check_cause, str)]
TransactionToken = Annotated[str, spelled(TOKEN), Codec(str, commits.check_token, str)]
CommitId = Annotated[str, Meta(pattern="^([0-9]{1,19}|new)$")]
AfterTopic = Annotated[
    str, Meta(description="Begin after this topic: `next` of the page before."), spelled(TOPIC)
]
TransactionS = Annotated[float, over(0, TIMEOUT_S_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="In ms since 1970.")]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
PARTITION = decimal_up_to(PARTITIONS_MAX - 1)
_stored_partition = number_in("partitions", commits.STORED_PARTITIONS)
StoredPartitions = Annotated[
    Collection[int],
    Meta(description="Some partitions, such as `0,3`; left out: all."),
    spelled(f"(?:{commits.STORED_PARTITION}(?:,{commits.STORED_PARTITION})*)?"),
    Codec(
        str,
        lambda text: [_stored_partition(one) for one in text.split(",") if text],
        lambda partitions: ",".join(map(str, partitions)),
    ),
]
EXPECTED_MAX = 100  # positions in a query; all fit into an address


def _expected(text: str) -> dict[int, str]:
    """The positions that a text expects. Raises `Invalid`, `BadMessageId`."""
    parts = [part.partition(":") for part in text.split(",") if part]
    if len(parts) > EXPECTED_MAX:
        raise Invalid(f"At most {EXPECTED_MAX} positions can be expected.", field="expected")
    return {_stored_partition(number): at and str(Position.parse(at)) for number, _, at in parts}


_EXPECTED = f"{commits.STORED_PARTITION}:(?:{POSITION})?"
ExpectedPositions = Annotated[
    Mapping[int, str],
    Meta(
        description="PARTITION:POSITION of up to 100 partitions, separated by commas, as they are "
        "now; no position: none yet."
    ),
    spelled(f"(?:{_EXPECTED}(?:,{_EXPECTED})*)?"),
    Codec(str, _expected, lambda expected: ",".join(f"{p}:{at}" for p, at in expected.items())),
]
HOLDING: Codec[Mapping[int, int]] = Codec(
    Annotated[
        dict[Partition, Annotated[int, Meta(ge=0, le=EPOCH_MAX)]],
        keyed_by(PARTITION),
    ]
)


def _isolation_text(isolation: ReadIsolation) -> str:
    return str(Isolation.SNAPSHOT if isinstance(isolation, Snapshot) else isolation)


Shown = Annotated[
    ReadIsolation,
    Meta(
        description="Of committed messages, only decided ones.",
    ),
    one_of(Isolation.COMMITTED, Isolation.UNCOMMITTED),
    Codec(str, as_isolation, _isolation_text),
]
_DURABLE = "What the messages survive once acknowledged; left out: as the topic says."


# Of a parameter that documents leave out.
UNSHOWN_KEY = "x-unshown"
UNSHOWN = shaped(**{UNSHOWN_KEY: True})
# What is expected is not said where nobody is told whether it was so.
PUBLISH_SHAPE = either(
    {"properties": {"expect": False}},
    {"properties": {"durability": {"enum": [Durability.WRITTEN, Durability.SYNCED]}}},
)
# Either a time or a delay.
DELAY_SHAPE = either(
    {"required": ["delay_s"], "properties": {"deliver_at_ms": False}},
    {"required": ["deliver_at_ms"], "properties": {"delay_s": False}},
)


class PublishQuery(Struct):
    """The query of a publish."""

    durability: Annotated[Durability, Meta(description=_DURABLE)] | None = None
    expect: (
        Annotated[
            str,
            Meta(
                description="Store them only if no message of their keys, or without keys none of "
                "the partition, came after this id; `nothing`: none whatsoever.",
            ),
            spelled(f"nothing|{MESSAGE_ID}"),
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
        spelled(f"{POSITION}|{PARTITION}:{POSITION}(?:,{PARTITION}:{POSITION})*"),
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
    isolation: Annotated[
        Isolation,
        Meta(description="What of transactions is shown; `snapshot`: see docs/http.md."),
        one_of(Isolation.COMMITTED, Isolation.UNCOMMITTED),
    ] = Isolation.COMMITTED
    snapshot: Annotated[str, UNSHOWN] | None = None  # bytes whose grammar no schema has
    where: (
        Annotated[
            str,
            Meta(
                max_length=FILTER_BYTES_MAX,
                description="Only messages that match, such as `key ^= user- and header.kind = "
                "order`.",
            ),
            spelled(FILTER),
        ]
        | None
    ) = None
    follow: Annotated[
        bool,
        Meta(
            description="True: the answer continues with each message as it is appended; "
            "`wait_s` is then the interval of empty parts while none comes."
        ),
    ] = False


class StageQuery(Struct):
    """The transaction of staged blocks."""

    transaction: Annotated[int, Meta(ge=1, description="The id of an open one.")]


class DelayQuery(Struct):
    """The time at which messages are due: one of the first two."""

    delay_s: (
        Annotated[float, Meta(ge=0, le=SECONDS_MAX, description="So long from now on.")] | None
    ) = None
    deliver_at_ms: TimeMs | None = None
    durability: Annotated[Durability, Meta(description=_DURABLE)] | None = None
