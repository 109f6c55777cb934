"""The writers that Spark calls: `write` on executors, `commit` and `abort` on the driver.

    batch    made on the driver, copied to the tasks and to the process that commits
    stream   made on the driver for each batch, copied to the tasks; the process that commits makes
             one of its own, so all that it needs comes with the tasks' messages

* The token of a write is made with the writer, so all attempts of all tasks have the same, and a
  restarted query has another one.
* Spark 4.2 calls `commit` with exactly one message for each task, of the attempt that counts.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tms.client.http.transport import HttpTransport, transport_to
from tms.errors import Conflict, Invalid
from tms.spark.sink.columns import shape_of
from tms.spark.sink.fence import Attempt, BatchFence, Job
from tms.spark.sink.options import write_options
from tms.spark.sink.staging import stage

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TIMEOUT_S = 120.0  # of a request with its repetitions: a service that is started anew is back then
ABORT_TIMEOUT_S = 10.0  # it only spares the service to wait for the time-out
CommitMessages = list[WriterCommitMessage | None]
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    attempt: Attempt


class _Writer:
    """The common part of both writers: picklable, no connection."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = write_options(options)
        if overwrite:
            raise Invalid(
                "Topics are appended to: use mode('append'), or outputMode('append') in a stream. "
                "What a topic holds is removed by `tms topic truncate` and by retention.",
                field="mode",
            )
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self._shape = shape_of(fields, self._options.topic)
        self._token = f"spark-{token_hex(16)}"

    def _connected(self, timeout_s: float = TIMEOUT_S) -> closing[HttpTransport]:
        options = self._options
        return closing(
            transport_to(options.url, token=options.token, timeout_s=timeout_s, tls=options.tls)
        )

    def _stage(self, job: Job, batches: Iterator["RecordBatch"], turn: int) -> TaskMessage:
        with self._connected() as transport:
            return TaskMessage(stage(transport, job, self._shape, batches, turn))

    def _commit(self, job: Job, messages: CommitMessages) -> None:
        if any(message is None for message in messages):
            raise Conflict("Spark asks for a commit, but a task did not report its staged blocks.")
        with self._connected() as transport:
            BatchFence(transport, job).commit(_attempts(messages))

    def _abort(self, job: Job, messages: CommitMessages) -> None:
        with self._connected(ABORT_TIMEOUT_S) as transport:
            BatchFence(transport, job).abort(_attempts(messages))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes all rows of a batch query in one transaction."""

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskMessage:
        """Stage the rows of a task."""
        return self._stage(Job(self._token), iterator, _context().partitionId())

    def commit(self, messages: CommitMessages) -> None:
        """Publish what the tasks staged."""
        self._commit(Job(self._token), messages)

    def abort(self, messages: CommitMessages) -> None:
        """Give up what the tasks staged."""
        self._abort(Job(self._token), messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes each batch of a stream in one transaction, exactly once."""

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskMessage:
        """Stage the rows of a task."""
        context = _context()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY, _BATCH))
        if not query or not batch:
            raise Invalid(
                "Spark does not say which query and batch this is, so nothing can be written "
                f"exactly once ({_QUERY}: {query}, {_BATCH}: {batch}). TMS knows pyspark 4.2; "
                "please report this with your version."
            )
        job = Job(f"{self._token}-{batch}", query, int(batch))
        return self._stage(job, iterator, context.partitionId())

    def commit(self, messages: CommitMessages, batchId: int) -> None:
        """Publish what the tasks staged, unless that was done."""
        if (job := _job(messages)) is not None:
            self._commit(job, messages)

    def abort(self, messages: CommitMessages, batchId: int) -> None:
        """Give up what the tasks staged, unless it is committed. When every task failed, what they
        staged times out."""
        if (job := _job(messages)) is not None:
            self._abort(job, messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _attempts(messages: CommitMessages) -> list[Attempt]:
    return [message.attempt for message in messages if isinstance(message, TaskMessage)]


def _job(messages: CommitMessages) -> Job | None:
    """The write that the tasks belong to; None when every task failed."""
    return next((attempt.job for attempt in _attempts(messages)), None)
