"""The layout of an archive's directory.

    topic=flights/date=2026-11-01/part-….zstd.parquet    messages, by topic and UTC day
    _spark_metadata/0, 1, …, 9.compact, …                which files belong to it, batch by batch
    _checkpoint/offsets/0, 1, …                          up to which offsets each batch goes

Invariants

* A file belongs to the archive when `_spark_metadata` names it. Others are left over from batches
  that were interrupted, and their rows are in other files too.
* Of a name there only what stands behind the archive's own directory counts: an archive that was
  moved or copied is as good.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pyspark.errors import AnalysisException

from tms.errors import Invalid, NotFound
from tms.spark.rows import WantedColumns, spark_ddl
from tms.spark.source.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT, MANIFEST = "_checkpoint", "_spark_metadata"
COLUMNS = WantedColumns(headers=True, message_id=True, event_time=True)
_SCHEMA = f"{spark_ddl(COLUMNS)}, date date"
_DEPTH = 3  # topic, date, file
_NAME_BYTES_MAX = 255  # of a directory, in local file systems and HDFS


def check_directories(topics: Iterable[str]) -> None:
    """Raises `Invalid` for a topic whose name is too long for a directory."""
    for topic in topics:
        name = f"topic={quote(topic, safe='')}"
        if len(name) > _NAME_BYTES_MAX:
            raise Invalid(
                f"{name} is a directory of an archive, and has {len(name)} bytes, more than "
                f"{_NAME_BYTES_MAX}. Use `tms export` for this topic.",
                field="topics",
            )


def archived(spark: "SparkSession", directory: str) -> "DataFrame":
    """The rows of an archive: all columns of a topic, and `date`. Files of an earlier release have
    no event times.

    Raises `NotFound` when there is no archive.
    """
    directory = directory.rstrip("/")
    files = committed_files(spark, directory)
    if files is None:
        raise NotFound(f"There is no archive in {directory}: it has no {MANIFEST}.")
    if not files:
        return spark.createDataFrame([], _SCHEMA)
    paths = [f"{directory}/{file}" for file in files]
    rows = spark.read.schema(_SCHEMA).option("basePath", directory).parquet(*paths)
    columns = [*spark.createDataFrame([], _SCHEMA).columns]
    return rows.select(*columns)


def committed_files(spark: "SparkSession", directory: str) -> list[str] | None:
    """The files of the archive, below its directory; None when there is none."""
    if _lines(spark, f"{directory}/{MANIFEST}") is None:
        return None
    named = spark.read.schema(_SCHEMA).parquet(directory).inputFiles()  # not looked at yet
    return sorted("/".join(unquote(path).split("/")[-_DEPTH:]) for path in named)


def begun(spark: "SparkSession", directory: str) -> dict[str, int]:
    """The topics that the archive has begun with, and how many partitions each has; none when it
    has not begun. Raises `Invalid` when what is in the directory cannot be gone on with."""
    batches = _lines(spark, f"{directory}/{CHECKPOINT}/offsets")
    if not batches:
        if _lines(spark, f"{directory}/{MANIFEST}") is not None:
            raise Invalid(
                f"{directory} holds an archive without {CHECKPOINT}: how far it goes is lost, and "
                "Spark would leave out what comes. Archive into another directory.",
                field="directory",
            )
        return {}
    newest = batches[max(batches, key=int)]
    partitions: dict[str, int] = {}
    for topic, ends in from_json(json.loads(newest[2])).ends.items():
        partitions[topic.name] = max(partitions.get(topic.name, 0), 1 + max(ends))
    return partitions


def _lines(spark: "SparkSession", directory: str) -> dict[str, list[str]] | None:
    """The lines of the files with numbers for names; None if there is no such file. The manifest's
    lines are private to Spark, so only its existence counts."""
    try:
        found = spark.read.text(f"{directory}/[0-9]*", wholetext=True)
        rows = found.select("_metadata.file_name", "value").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return {row.file_name: row.value.splitlines() for row in rows}
