"""The writers that Spark calls: `write` on executors, `commit` and `abort` on the driver.

    batch    made on the driver, copied to the tasks and to the process that commits
    stream   made on the driver for each batch, copied to the tasks; the process that commits makes
             one of its own, so all that it needs comes with the tasks' messages

* The token of a write is made with the writer, so all attempts of all tasks have the same, and a
  restarted query has another one.
* Spark 4.2 calls `commit` with exactly one message for each task, of the attempt that counts.
"""

from collections.abc import Iterator, Mapping, Sequence
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

from tms.client.http.transport import HttpTransport
from tms.errors import Conflict, Invalid
from tms.spark.sink.columns import Shape, shape_of
from tms.spark.sink.fence import Attempt, BatchFence, Job
from tms.spark.sink.options import WriteOptions, write_options
from tms.spark.sink.staging import stage

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TIMEOUT_S = 120.0  # of a request with its repetitions: a service that is started anew is back then
ABORT_TIMEOUT_S = 10.0  # it only spares the service to wait for the time-out
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    attempt: Attempt


class _Writer:
    """What both writers are made of: picklable, no connection."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = write_options(options)
        if overwrite:
            raise Invalid(
                "Topics are appended to: use mode('append'), or outputMode('append') in a stream. "
                "What a topic holds is removed by `tms topic truncate` and by retention.",
                field="mode",
            )
        self._shape = _shape(schema, self._options)
        self.token = f"spark-{token_hex(16)}"

    def connect(self, timeout_s: float = TIMEOUT_S) -> HttpTransport:
        """A transport, for the caller to close."""
        return HttpTransport(self._options.url, token=self._options.token, timeout_s=timeout_s)

    def stage(self, job: Job, batches: Iterator["RecordBatch"], turn: int) -> TaskMessage:
        """Stage the rows of a task."""
        transport = self.connect()
        try:
            return TaskMessage(stage(transport, job, self._shape, batches, turn))
        finally:
            transport.close()

    def commit(self, job: Job, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what these tasks staged."""
        if any(message is None for message in messages):
            raise Conflict("Spark asks for a commit, but a task has not said what it staged.")
        transport = self.connect()
        try:
            BatchFence(transport, job).commit(_attempts(messages))
        finally:
            transport.close()

    def abort(self, job: Job, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give up what these tasks staged."""
        transport = self.connect(ABORT_TIMEOUT_S)
        try:
            BatchFence(transport, job).abort(_attempts(messages))
        finally:
            transport.close()


class BatchWriter(DataSourceArrowWriter):
    """Writes all rows of a batch query in one transaction."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite)
        self._job = Job(self._writer.token)

    def write(self, iterator: Iterator["RecordBatch"]) -> TaskMessage:
        """Stage the rows of a task."""
        return self._writer.stage(self._job, iterator, _context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        self._writer.commit(self._job, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what the tasks staged."""
        self._writer.abort(self._job, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream in one transaction, exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite)

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
        job = Job(f"{self._writer.token}-{batch}", query, int(batch))
        return self._writer.stage(job, iterator, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks staged, unless that was done."""
        job = _job(messages)
        if job is not None:
            self._writer.commit(job, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Give up what the tasks staged, unless it is committed."""
        job = _job(messages)
        if job is not None:  # else every task failed, and what they staged times out
            self._writer.abort(job, messages)


def _shape(schema: StructType, options: WriteOptions) -> Shape:
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return shape_of(fields, options.topic)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _attempts(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    return [message.attempt for message in messages if isinstance(message, TaskMessage)]


def _job(messages: Sequence[WriterCommitMessage | None]) -> Job | None:
    return next((message.job for message in _attempts(messages)), None)
