"""Topic → archive: a stream from the data source into Spark's file sink.

    splits of a batch ──▶ neighbours to a few tasks ──▶ one file each for topic and day

Invariants

* Exactly once: how far a batch goes stands in the checkpoint before it is read, which files it has
  made in the manifest before the next one begins. A batch that was interrupted is read again, the
  same.
* Nothing is shuffled or sorted: tasks take neighbouring splits one after another, so the rows of a
  partition are in the order of their offsets in each file.
* A message that is gone before it is archived is an error, once the archive has begun: an archive
  has no unreported holes.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tms.errors import Invalid, OffsetOutOfRange
from tms.spark.archive_limits import EVERY, ROWS_PER_BATCH, ROWS_PER_FILE
from tms.spark.jobs.archive_layout import CHECKPOINT, begun, check_directories
from tms.spark.jobs.place import Names, ProgressCallback, Subject, errors_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ALL = {
    "startingOffsets": "earliest",
    "includeHeaders": "true",
    "includeMessageId": "true",
    "includeEventTime": "true",
}
_LOOK_S = 0.5
# The file sink sorts the rows of a task by topic and day, unless it may have a file open for each
# of these; a sort that spills to the disk would not keep the order of offsets.
_OPEN_FILES = "spark.sql.maxConcurrentOutputFileWriters"
_OPEN_FILES_MAX = "1000"
_DATE = "date_from_unix_date(CAST(unix_micros(timestamp) DIV 86400000000 AS INT)) AS date"

ReportedOffsets = dict[str, dict[str, int]]


@dataclass
class Archived:
    """The messages that a run has added, and the offsets up to which the archive goes now."""

    rows: int = 0
    batches: int = 0
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)


def archive(
    spark: "SparkSession",
    topics: Names,
    directory: str,
    url: str | None = None,
    *,
    token: str | None = None,
    store: str | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    rows_per_file: int = ROWS_PER_FILE,
    allow_loss: bool = False,
    follow: bool = False,
    every: str = EVERY,
    progress: ProgressCallback | None = None,
) -> Archived:
    """Add what is new in the topics to the archive in `directory`, as Parquet by topic and UTC day.

    The first run takes all that the topics hold, each further one continues where the last has
    ended, however it ended. With `follow` it never ends, and looks for more at intervals of
    `every`. A batch has up to `rows_per_batch` messages, a file up to `rows_per_file`. `progress`
    is called with the number of offsets that are done, and their total.

    Raises `OffsetOutOfRange`, which names them, when messages have expired or were truncated before
    they were archived; with `allow_loss` it goes on without them. Raises `TopicNotFound`,
    `Invalid`.
    """
    subject = Subject.of(topics, url, token, store)
    if not 1 <= rows_per_file <= rows_per_batch:
        raise Invalid(
            f"A file has 1 row at least and a batch at most: got {rows_per_file} rows for a file, "
            f"{rows_per_batch} for a batch.",
            field="rows_per_file",
        )
    directory = _checked(spark, directory, subject)
    files = -(-rows_per_batch // rows_per_file)
    more = {
        "maxOffsetsPerTrigger": str(rows_per_batch),
        "minPartitions": str(files),
        "failOnDataLoss": str(not allow_loss).lower(),
    }
    stream = spark.readStream.format("tms").options(**subject.options, **_ALL, **more)
    with _loss_explained(), errors_told():
        rows = stream.load().selectExpr("*", _DATE).coalesce(files)
        writer = _writer(rows, directory, rows_per_file)
        if follow:
            writer = writer.trigger(processingTime=every)
        else:
            writer = writer.trigger(availableNow=True)
        with _setting(spark, _OPEN_FILES, _OPEN_FILES_MAX):
            return _Watched(writer.start(), progress).ended()


def _checked(spark: "SparkSession", directory: str, subject: Subject) -> str:
    """The directory without a slash at its end. Raises `Invalid` when it cannot be gone on with."""
    check_directories(subject.topics)
    directory = directory.rstrip("/")
    missing = sorted(begun(spark, directory).keys() - set(subject.topics))
    if missing:
        raise Invalid(
            f"The archive in {directory} also has {', '.join(missing)}: name all of its topics, or "
            "use another directory.",
            field="topics",
        )
    return directory


def _writer(rows: "DataFrame", directory: str, rows_per_file: int) -> "DataStreamWriter":
    return (
        rows.writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("path", directory)
        .option("checkpointLocation", f"{directory}/{CHECKPOINT}")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", rows_per_file)
    )


@contextmanager
def _setting(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


@contextmanager
def _loss_explained() -> Iterator[None]:
    """Raise losses as errors in the words of an archive."""
    try:
        yield
    except OffsetOutOfRange as error:
        lost = error.message.partition(". To go on")[0]
        raise OffsetOutOfRange(
            f"{lost}. Archive with --allow-loss (allow_loss=True) to go on behind them.",
            **error.details,
        ) from error


class _Watched:
    """A query, and what it has done."""

    def __init__(self, query: "StreamingQuery", progress: ProgressCallback | None) -> None:
        self._query = query
        self._progress = progress
        self._done = Archived()
        self._seen = -1  # the last batch that is counted
        self._began: int | None = None

    def ended(self) -> Archived:
        """The result of the run."""
        try:
            while not self._query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]
                self._look()
        finally:
            self._query.stop()
            self._look()
        return self._done

    def _look(self) -> None:
        for report in self._query.recentProgress:
            if report["batchId"] <= self._seen or not report["sources"]:
                continue
            source = report["sources"][0]
            start, end = _offsets(source["startOffset"]), _offsets(source["endOffset"])
            if not end or start == end:
                continue
            self._seen = report["batchId"]
            self._done.batches += 1
            self._done.rows += report["numInputRows"]
            self._done.offsets = end
            self._tell(start, end, _offsets(source["latestOffset"]))

    def _tell(self, start: ReportedOffsets, end: ReportedOffsets, latest: ReportedOffsets) -> None:
        if self._progress is None:
            return
        if self._began is None:
            self._began = _sum(start)
        at = _sum(end) - self._began
        self._progress(at, max(at, _sum(latest) - self._began))


def _offsets(said: Any) -> ReportedOffsets:
    """Offsets of a progress report, without where partitions were begun."""
    offsets = json.loads(said) if isinstance(said, str) else said
    if not isinstance(offsets, Mapping):
        return {}
    return {key: dict(ends) for key, ends in offsets.items() if not key.endswith("#from")}


def _sum(offsets: ReportedOffsets) -> int:
    return sum(at for ends in offsets.values() for at in ends.values())
