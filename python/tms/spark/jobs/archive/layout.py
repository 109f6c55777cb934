"""The directory of an archive: what is where.

    topic=flights/date=2026-11-01/part-….zstd.parquet    messages, by topic and UTC day
    _spark_metadata/0, 1, …, 9.compact, …                which files belong to it, one for a batch
    _checkpoint/offsets/0, 1, …                          up to which offsets each batch goes

Invariants

* A file belongs to the archive when `_spark_metadata` names it. Others are left over from batches
  that were interrupted, and their rows are in other files too.
* Of a name there only what stands behind the archive's own directory counts: an archive that was
  moved or copied is as good.
"""

import json
import re
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from tms.errors import Invalid, NotFound
from tms.spark.rows import Columns, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT, MANIFEST = "_checkpoint", "_spark_metadata"
COLUMNS = Columns(headers=True, message_id=True)
_DEPTH = 3  # topic, date, file
_LIFE = re.compile(r"([^#]+)(#[0-9]+)?")


def archived(spark: "SparkSession", directory: str) -> "DataFrame":
    """The rows of an archive: the columns of a topic with headers and id, and `date`.

    Raises `NotFound` when there is no archive.
    """
    directory = directory.rstrip("/")
    schema = f"{spark_ddl(COLUMNS)}, date date"
    files = committed_files(spark, directory)
    if files is None:
        raise NotFound(f"There is no archive in {directory}: it has no {MANIFEST}.")
    if not files:
        return spark.createDataFrame([], schema)
    paths = [f"{directory}/{file}" for file in files]
    found = spark.read.schema(schema).option("basePath", directory).parquet(*paths)
    columns = [*spark.createDataFrame([], schema).columns]
    return found.select(*columns)


def committed_files(spark: "SparkSession", directory: str) -> list[str] | None:
    """The files of the archive, below its directory; None when there is none."""
    batches = _read(spark, f"{directory}/{MANIFEST}")
    if batches is None:
        return None
    compact = max((int(name.split(".")[0]) for name in batches if "." in name), default=-1)
    files: dict[str, None] = {}
    for name, lines in batches.items():
        batch, _, whole = name.partition(".")
        if int(batch) < compact or (int(batch) == compact and not whole):
            continue
        for entry in map(json.loads, lines[1:]):
            path = "/".join(entry["path"].split("/")[-_DEPTH:])
            files[path] = None
    return sorted(files)


def begun(spark: "SparkSession", directory: str) -> dict[str, int]:
    """The topics that the archive has begun with, and how many partitions each has; none when it
    has not begun. Raises `Invalid` when what is in the directory cannot be gone on with."""
    batches = _read(spark, f"{directory}/{CHECKPOINT}/offsets")
    if not batches:
        if _read(spark, f"{directory}/{MANIFEST}"):
            raise Invalid(
                f"{directory} holds an archive without {CHECKPOINT}: how far it goes is lost, and "
                "Spark would leave out what comes. Archive into another directory.",
                field="directory",
            )
        return {}
    newest = batches[max(batches, key=int)]
    offsets: dict[str, dict[str, int]] = json.loads(newest[2])
    found: dict[str, int] = {}
    for key, ends in offsets.items():
        life = _LIFE.fullmatch(key)
        if life is not None:
            found[life[1]] = max(found.get(life[1], 0), 1 + max(map(int, ends)))
    return found


def _read(spark: "SparkSession", directory: str) -> dict[str, list[str]] | None:
    """The lines of each file there; None when there is no such directory."""
    try:
        found = spark.read.option("wholetext", "true").text(directory)
        rows = found.select("_metadata.file_name", "value").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return {row.file_name: row.value.splitlines() for row in rows if row.file_name[0].isdigit()}
