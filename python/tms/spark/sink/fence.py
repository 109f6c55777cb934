"""The driver's side of a write: a write is committed once, by one driver, or not at all.

    attempts that count ─▶ one transaction? ─▶ not done? ─▶ commit: their producers, the position

A batch of a stream moves the position of the group `spark-QUERY` from what it was to the batch's
number plus one, in the transaction that publishes its messages. So it is known for ever which
batches are in the topics, and of two drivers that write the same batch only one commits. The
position stands in partition 0 of `system:_positions`, not in a topic that is written to: those may
change from batch to batch, be deleted, or be another one after a restart.

Invariants

* Whatever dies, and however often a step is repeated, a batch is in the topics once or not at all.
* Attempts of one write are committed together only if they staged in one transaction. A unique
  token identifies the write, so the remains of an earlier one hinder no later one.
* An abort cannot undo a commit: the transaction has ended, and says so.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tms.api.operations import TransactionsApi
from tms.client.transport import Transport
from tms.errors import Conflict, TimedOut, TMSError, TooLarge, TransactionEnded, TransactionNotFound
from tms.model.position import Position, PositionKind
from tms.model.topic import SYSTEM_NAMESPACE, Durability, TopicName
from tms.model.transaction import Commit, PositionChange, PositionKey, TopicStaged
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.retrying import retrying

FENCE = TopicName(SYSTEM_NAMESPACE, "_positions")
COMMIT_TIMEOUT_S = 120.0  # a service that is started anew is back by then
BATCH_TIMEOUT_S = 3_600.0  # of a stream; nobody waits for what is only staged
_HEAD_BYTES_MAX = 8 << 20  # of a commit, and about what naming a producer and a partition takes
_PRODUCER_BYTES = 20  # 19 digits and a comma
_PARTITION_BYTES = 330


@dataclass(frozen=True, slots=True)
class Job:
    """A write: a batch of a stream, or all of a batch query, then without `query`. All tasks of a
    write have one `token`, which no other write has."""

    token: str
    query: str = ""
    batch: int = -1

    @property
    def position(self) -> PositionKey:
        """The position that says which batches are done."""
        return PositionKey(f"spark-{self.query}", FENCE, 0)

    def begin(self, port: TransactionsApi) -> int:
        """The id of its transaction, which begins with the first call."""
        if self.query:
            return port.begin(timeout_s=BATCH_TIMEOUT_S, token=self.token).transaction_id
        return port.begin(long=True, token=self.token).transaction_id  # a day

    def __str__(self) -> str:
        return f"batch {self.batch} of the query {self.query}" if self.query else "the write"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The blocks that an attempt of a task has staged: topic, partition and number of blocks.
    Without a transaction nothing is staged, because there were no rows, or the batch was done
    before."""

    job: Job
    transaction_id: int = 0
    producer_id: int = 0
    staged: tuple[tuple[TopicName, int, int], ...] = ()


class BatchFence:
    """Decides about one write."""

    def __init__(
        self,
        transport: Transport,
        job: Job,
        clock: Clock | None = None,
        timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        self._port, self._groups = transport.transactions, transport.groups
        self._job = job
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s

    def is_done(self) -> bool:
        """True if the batch is in the topics already."""
        return bool(self._job.query) and self._is_behind(self._standing())

    def commit(self, attempts: Sequence[Attempt]) -> None:
        """Publish the blocks that these attempts staged, and nothing else; does nothing when that
        was done. Raises `Conflict` when another driver has committed the batch, `TransactionEnded`
        when it took too long, `TimedOut` when the outcome is unknown."""
        staged = [attempt for attempt in attempts if attempt.transaction_id]
        if not staged:
            return
        id = self._transaction(staged)
        standing = self._standing() if self._job.query else None
        if self._is_behind(standing):
            self._check_own(id, None)
            return
        request = self._request(id, staged, standing)
        try:
            retrying(
                lambda left_s: self._port.commit(request, left_s),
                self._clock,
                self._timeout_s,
                what="commit",
            )
        except Conflict as error:
            if self._job.query and self._is_behind(self._standing()):
                self._check_own(id, error)
                return
            if isinstance(error, TransactionEnded):
                raise self._ended(id) from error
            raise
        except TMSError as error:
            if not error.retriable:
                raise
            raise TimedOut(
                f"Nobody can tell whether {self._job} is committed: the service does not answer. "
                f"Once it does, `tms tx show {id}` tells. {self._remedy()}",
                transaction=id,
                outcome="unknown",
            ) from error

    def abort(self, attempts: Sequence[Attempt]) -> None:
        """Drop the staged blocks, unless they are committed. The transaction of an unreachable
        service times out."""
        ids = {attempt.transaction_id for attempt in attempts if attempt.transaction_id}
        with suppress(TMSError):
            if not ids and not self._job.query:
                ids = {self._job.begin(self._port)}  # of tasks that failed: it is still open
        for id in ids:
            with suppress(TMSError):
                self._port.abort(id)

    def _standing(self) -> Position | None:
        key = self._job.position
        return self._groups.positions(key.topic, key.group).get(key.partition)

    def _is_behind(self, standing: Position | None) -> bool:
        """True if the position is behind this batch."""
        at = standing.number if standing is not None and standing.kind is PositionKind.OFFSET else 0
        return at > self._job.batch >= 0

    def _transaction(self, staged: Sequence[Attempt]) -> int:
        ids = {attempt.transaction_id for attempt in staged}
        if len(ids) > 1:
            raise self._ended(min(ids))
        return ids.pop()

    def _check_own(self, id: int, error: TMSError | None) -> None:
        """The batch is done: raises unless it was this transaction that did it."""
        outcome = ""
        with suppress(TransactionNotFound):  # it ended long ago
            outcome = self._port.describe(id).outcome
        if outcome != "committed":
            raise Conflict(
                f"Another driver has committed {self._job} meanwhile: two queries use the same "
                "checkpoint, or the last commit of a driver that died has arrived late. Nothing "
                "was written twice. Start one query again, and no other; a query of its own needs "
                "a checkpoint of its own.",
                query=self._job.query,
                batch=self._job.batch,
            ) from error

    def _request(self, id: int, staged: Sequence[Attempt], standing: Position | None) -> Commit:
        blocks: dict[tuple[TopicName, int], int] = {}
        producers: dict[tuple[TopicName, int], list[int]] = {}
        for attempt in staged:
            for topic, partition, count in attempt.staged:
                place = (topic, partition)
                blocks[place] = blocks.get(place, 0) + count
                producers.setdefault(place, []).append(attempt.producer_id)
        named = sum(map(len, producers.values()))
        if named * _PRODUCER_BYTES + len(blocks) * _PARTITION_BYTES > _HEAD_BYTES_MAX:
            raise TooLarge(
                f"{len(staged)} tasks wrote to {len(blocks)} partitions, {named} pairs of both: "
                "more than a commit can name. Write with fewer tasks: coalesce() before."
            )
        positions: tuple[PositionChange, ...] = ()
        if self._job.query:
            after = Position.offset(self._job.batch + 1)
            expected = "" if standing is None else str(standing)
            positions = (PositionChange(self._job.position, after, expected),)
        parts = (
            TopicStaged(*place, count, tuple(producers[place])) for place, count in blocks.items()
        )
        # Synced: Spark notes in its checkpoint, or tells its user, that this is done.
        return Commit(id, positions=positions, staged=tuple(parts), durability=Durability.SYNCED)

    def _ended(self, id: int) -> TransactionEnded:
        limit = "an hour" if self._job.query else "a day"
        return TransactionEnded(
            f"The transaction of {self._job} ended before it was committed: it took longer than "
            f"{limit}, or the service stopped in the midst of it. Nothing of it is visible. Write "
            "it again; if it takes too long, write less at a time, e.g. with "
            "maxOffsetsPerTrigger.",
            transaction=id,
        )

    def _remedy(self) -> str:
        if self._job.query:
            return "Start the query again: it finds out by itself, and nothing is written twice."
        return "Do not write it again before you know."
