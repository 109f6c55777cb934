"""HTTP/1.1 without I/O: calls to bytes, and what an answer means. Shared by the synchronous and the
asyncio client.

    Calls ──▶ Call(chunks to send, how to read the answer)

* The request's head is built once per topic and durability; publishing adds only its length.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from tms.api import bodies, commits, delayed, groups, routes
from tms.api.erasing import Erase, ErasedBody, erase_body
from tms.errors import ConfigError, Malformed, TMSError, Unavailable
from tms.errors import ErrorKind as ErrorKind
from tms.model.delayed import Deferred, DelayedId, Due
from tms.model.filter import Filter
from tms.model.group import GroupInfo, GroupStanding, GroupSummary
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection
from tms.model.message import Appended, Buffer, Fetched, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation, View
from tms.model.topic import Durability, TopicInfo, TopicName, TopicSettings
from tms.model.transaction import Commit, CommitResult, PositionChange, TransactionInfo

WAIT_S_MAX = 20.0  # of one request; who waits for longer asks again
T = TypeVar("T")

_CONTENT_TYPE, _CONNECTION = b"content-type", b"connection"
_GOOD = frozenset((routes.OK, routes.CREATED, routes.NO_CONTENT))
_UNAVAILABLE = frozenset(
    routes.STATUS[kind] for kind in (ErrorKind.UNAVAILABLE, ErrorKind.TIMED_OUT)
)


class Response(NamedTuple):
    """One HTTP response; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: Buffer

    @property
    def keeps_open(self) -> bool:
        """Whether the connection may carry further requests."""
        return self.headers.get(_CONNECTION, b"").lower() != b"close"


class Call(NamedTuple, Generic[T]):
    """A request as bytes, and how its answer is read."""

    chunks: list[Buffer]
    read: Callable[[Response], T]


class Calls:
    """Builds the calls to one service. `peer` names it in errors; a `token`, printable ASCII, goes
    with every request, for what guards the service."""

    def __init__(self, authority: str, peer: str, token: str = "") -> None:
        self._peer = peer
        self._common = f" HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: tms-python\r\n"
        if token:
            self._common += f"Authorization: Bearer {token}\r\n"
        self._append_head = lru_cache(1_024)(self._make_append_head)

    def create_topic(self, name: TopicName, settings: TopicSettings) -> Call[TopicInfo]:
        return self._json(
            "PUT", routes.topic_path(name), bodies.settings_body(settings), self._info
        )

    def describe_topic(self, name: TopicName) -> Call[TopicInfo]:
        return self._json("GET", routes.topic_path(name), None, self._info)

    def list_topics(self, namespace: str, after: str | None, limit: int) -> Call[list[TopicInfo]]:
        query = f"?limit={limit}" + ("" if after is None else f"&after={after}")
        return self._json(
            "GET",
            routes.topics_path(namespace) + query,
            None,
            lambda answer: bodies.decode(self._good(answer), bodies.TopicsBody).topics,
        )

    def update_topic(self, name: TopicName, changes: Mapping[str, object]) -> Call[TopicInfo]:
        return self._json(
            "PATCH", routes.topic_path(name), bodies.changes_body(changes), self._info
        )

    def truncate_topic(self, name: TopicName, before: Position) -> Call[TopicInfo]:
        body = bodies.encode(bodies.TruncateBody(str(before)))
        return self._json("POST", routes.truncate_path(name), body, self._info)

    def erase(self, name: TopicName, wanted: Erase) -> Call[int]:
        return self._json(
            "POST",
            routes.erase_path(name),
            erase_body(wanted),
            lambda answer: bodies.decode(self._good(answer), ErasedBody).erased,
        )

    def delete_topic(self, name: TopicName) -> Call[None]:
        return self._json("DELETE", routes.topic_path(name), None, self._nothing)

    def offsets(self, name: TopicName, at: Position, isolation: View) -> Call[Mapping[int, int]]:
        return self._json(
            "GET",
            routes.offsets_path(name, str(at), isolation),
            None,
            lambda answer: bodies.decode(self._good(answer), bodies.OffsetsBody).offsets,
        )

    def inspect(self, name: TopicName, partition: int, limit: int) -> Call[PartitionInspection]:
        return self._json(
            "GET",
            routes.inspect_path(name, partition, limit),
            None,
            lambda answer: bodies.decode(self._good(answer), PartitionInspection),
        )

    def append(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> Call[list[Appended]]:
        chunks = bodies.frame(blocks)
        expect = blocks[0].expect if blocks else None
        common = self._append_head if expect is None else self._make_append_head
        head = common(name, durability, expect) + b"%d\r\n\r\n" % sum(map(len, chunks))
        return Call([head, *chunks], self._appended)

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float,
        isolation: View = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Call[Fetched]:
        start = bodies.positions_text(dict(positions))
        path = routes.fetch_path(
            name,
            start,
            bytes_max=bytes_max,
            wait_ms=max(0, round(wait_s * 1_000)),
            isolation=isolation,
            where=where,
        )
        head = f"GET {path}{self._common}Accept: {routes.BLOCKS}, {routes.PROBLEM}\r\n\r\n"
        return Call([head.encode("ascii")], self._fetched)

    def publish_later(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None,
        token: str,
    ) -> Call[list[Deferred]]:
        chunks = bodies.frame(blocks)
        head = (
            f"POST {routes.delayed_path(name, due.at_ms, due.delay_ms, durability)}{self._common}"
            f"Content-Type: {routes.BLOCKS}\r\nAccept: {routes.JSON}, {routes.PROBLEM}\r\n"
            + (f"Idempotency-Key: {token}\r\n" if token else "")
            + f"Content-Length: {sum(map(len, chunks))}\r\n\r\n"
        )
        return Call(
            [head.encode("ascii"), *chunks],
            lambda answer: bodies.decode(self._good(answer), delayed.DeferredBody).deferred,
        )

    def cancel(self, name: TopicName, id: DelayedId) -> Call[bool]:
        return self._json(
            "DELETE",
            routes.delayed_message_path(name, str(id)),
            None,
            lambda answer: bodies.decode(self._good(answer), delayed.CancelledBody).cancelled,
        )

    def waiting(
        self, name: TopicName, after: DelayedId | None, limit: int
    ) -> Call[delayed.WaitingBody]:
        path = routes.waiting_path(name, "" if after is None else str(after), limit)
        return self._json(
            "GET", path, None, lambda a: bodies.decode(self._good(a), delayed.WaitingBody)
        )

    def begin(self, timeout_s: float | None, long: bool, token: str) -> Call[TransactionInfo]:
        body = bodies.encode(commits.BeginBody(timeout_s, long, token))
        return self._json("POST", routes.TRANSACTIONS, body, self._transaction)

    def describe_transaction(self, id: int) -> Call[TransactionInfo]:
        return self._json("GET", routes.transaction_path(id), None, self._transaction)

    def open_transactions(self) -> Call[list[TransactionInfo]]:
        return self._json(
            "GET",
            routes.TRANSACTIONS,
            None,
            lambda answer: bodies.decode(self._good(answer), commits.TransactionsBody).transactions,
        )

    def forget_positions(self, group: str, name: TopicName) -> Call[None]:
        return self._json("DELETE", routes.positions_path(name, group), None, self._nothing)

    def prune(self, before_ms: int) -> Call[int]:
        body = bodies.encode(commits.PruneBody(before_ms))
        return self._json(
            "POST",
            f"{routes.TRANSACTIONS}/prune",
            body,
            lambda answer: bodies.decode(self._good(answer), commits.PrunedBody).pruned,
        )

    def abort(self, id: int) -> Call[TransactionInfo]:
        return self._json("DELETE", routes.transaction_path(id), None, self._transaction)

    def invalidate(self, id: int) -> Call[TransactionInfo]:
        path = routes.transaction_path(id, "invalidate")
        return self._json("POST", path, None, self._transaction)

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], id: int) -> Call[None]:
        chunks = bodies.frame(blocks)
        head = (
            f"POST {routes.staged_path(name, id)}{self._common}Content-Type: {routes.BLOCKS}\r\n"
            f"Accept: {routes.PROBLEM}\r\nContent-Length: {sum(map(len, chunks))}\r\n\r\n"
        )
        return Call([head.encode("ascii"), *chunks], self._nothing)

    def commit(self, commit: Commit) -> Call[CommitResult]:
        chunks = commits.encode_commit(commit)
        path = routes.transaction_path(commit.transaction_id, "commit")
        head = (
            f"POST {path}{self._common}Content-Type: {routes.COMMIT}\r\n"
            f"Accept: {routes.JSON}, {routes.PROBLEM}\r\n"
            f"Content-Length: {sum(map(len, chunks))}\r\n\r\n"
        )
        return Call(
            [head.encode("ascii"), *chunks],
            lambda answer: commits.decode_result(self._good(answer)),
        )

    def positions(self, group: str, name: TopicName) -> Call[dict[int, Position]]:
        return self._json(
            "GET",
            routes.positions_path(name, group),
            None,
            lambda answer: commits.positions_of(
                bodies.decode(self._good(answer), commits.PositionsBody).positions
            ),
        )

    def move(self, group: str, name: TopicName, changes: Sequence[PositionChange]) -> Call[None]:
        body = commits.PositionsBody(
            {str(one.key.partition): str(one.position) for one in changes},
            {str(one.key.partition): one.expected for one in changes if one.expected is not None},
            {
                str(one.key.partition): body
                for one in changes
                if (body := commits.owner_body(one.owner)) is not None
            },
        )
        path = routes.positions_path(name, group)
        return self._json("PUT", path, bodies.encode(body), self._nothing)

    def poll(
        self,
        group: str,
        name: TopicName,
        member: str,
        session_s: float,
        holding: Mapping[int, int],
        reading: bool,
    ) -> Call[GroupStanding]:
        return self._json(
            "POST",
            routes.groups_path(name, group, member),
            groups.encode_poll(session_s, holding, reading),
            lambda answer: groups.decode_standing(self._good(answer)),
        )

    def leave(self, group: str, name: TopicName, member: str) -> Call[None]:
        path = routes.groups_path(name, group, member)
        return self._json("DELETE", path, None, self._nothing)

    def describe_group(self, group: str, name: TopicName) -> Call[GroupInfo]:
        return self._json(
            "GET",
            routes.groups_path(name, group),
            None,
            lambda answer: bodies.decode(self._good(answer), GroupInfo),
        )

    def list_groups(self, name: TopicName) -> Call[list[GroupSummary]]:
        return self._json(
            "GET",
            routes.groups_path(name),
            None,
            lambda answer: bodies.decode(self._good(answer), groups.GroupsBody).groups,
        )

    def _transaction(self, answer: Response) -> TransactionInfo:
        return bodies.decode(self._good(answer), TransactionInfo)

    def _make_append_head(
        self, name: TopicName, durability: Durability | None, expect: MessageId | None
    ) -> bytes:
        path = routes.messages_path(name, durability, expect)
        return (
            f"POST {path}{self._common}Content-Type: {routes.BLOCKS}\r\n"
            f"Accept: {routes.JSON}, {routes.PROBLEM}\r\nContent-Length: "
        ).encode("ascii")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[Buffer], T],
        *,
        accept: str = routes.JSON,
    ) -> Call[T]:
        """A request with JSON or nothing; `read` is given the body of its success."""
        head = f"{method} {path}{self._common}Accept: {accept}, {routes.PROBLEM}\r\n"
        if body is None:
            return Call([f"{head}\r\n".encode("ascii")], lambda answer: read(self._good(answer)))
        head += f"Content-Type: {routes.JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        return Call([head.encode("ascii"), body], lambda answer: read(self._good(answer)))

    def _json(
        self, method: str, path: str, body: bytes | None, read: Callable[[Response], T]
    ) -> Call[T]:
        head = f"{method} {path}{self._common}Accept: {routes.JSON}, {routes.PROBLEM}\r\n"
        if body is None:
            return Call([f"{head}\r\n".encode("ascii")], read)
        head += f"Content-Type: {routes.JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        return Call([head.encode("ascii"), body], read)

    def _good(self, answer: Response) -> Buffer:
        """The body of a success. Raises the error that the answer carries."""
        if answer.status in _GOOD:
            return answer.body
        if answer.headers.get(_CONTENT_TYPE, b"").startswith(routes.PROBLEM.encode()):
            error = routes.from_problem(answer.status, answer.body)
            asked = answer.headers.get(b"retry-after", b"")
            if asked.isdigit():
                error.details.setdefault("retry_after_s", int(asked))
            raise error
        if answer.status in _UNAVAILABLE:
            raise Unavailable(
                f"Something in front of {self._peer} answered with status {answer.status}: the "
                "service behind it cannot be reached.",
                outcome="unknown",
            )
        raise self._stranger(f"answered with status {answer.status}")

    def _stranger(self, what: str) -> TMSError:
        return ConfigError(
            f"{self._peer} {what} and not as a TMS service does. Check the URL: is another HTTP "
            "server at this port?"
        )

    def _info(self, answer: Response) -> TopicInfo:
        return bodies.decode(self._good(answer), TopicInfo)

    def _nothing(self, answer: Response) -> None:
        self._good(answer)

    def _appended(self, answer: Response) -> list[Appended]:
        return bodies.decode(self._good(answer), bodies.AppendedBody).appended

    def _fetched(self, answer: Response) -> Fetched:
        body = self._good(answer)
        following = answer.headers.get(routes.NEXT_HEADER.lower().encode())
        ends = answer.headers.get(routes.END_HEADER.lower().encode())
        reached = answer.headers.get(routes.REACHED_HEADER.lower().encode())
        if following is None or ends is None or reached is None:
            raise self._stranger(
                "answered a fetch without the headers TMS-Next, TMS-End and TMS-Reached"
            )
        places = bodies.parse_positions(following.decode("ascii"))
        if isinstance(places, Position):
            raise Malformed(f"The header TMS-Next names no partitions: {following[:64]!r}.")
        return Fetched(
            bodies.unframe(body),
            dict(places),
            bodies.parse_ends(ends.decode("ascii")),
            bodies.parse_ends(reached.decode("ascii")),
        )
