"""Spark: a batch and an archive of each topic, `compact_check`; through the service and, if topics
are in an HBase, from HBase itself."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from integration.soak.readers.writing import Place, row, write
from tms.errors import TMSError

_TRIES = 5
_OPTIONS = {"includeHeaders": "true", "includeMessageId": "true"}


def read(place: Place, topics: list[str], store: str) -> list[str]:
    """Write batches and archives; returns the findings of `compact_check`."""
    import tms.spark
    from tms.spark import jobs

    wrong: list[str] = []
    spark = tms.spark.session(
        "local[2]", **{"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    )
    try:
        for lane in ("service", "hbase") if store else ("service",):
            where = {"tms.url": place.url} if lane == "service" else {"tms.store": store}
            for topic in topics:
                options = {**_OPTIONS, **where, "source": lane, "subscribe": topic}
                found = spark.read.format("tms").options(**options).load()
                write(place, f"spark {lane}", topic, rows_of(found), ordered=False)
            place_of: dict[str, Any] = {"url": place.url} if lane == "service" else {"store": store}
            for topic in topics:
                directory = str(place.directory / f"archive-{lane}-{topic}")
                _in_time(partial(jobs.archive, spark, topic, directory, **place_of))
                found = jobs.archived(spark, directory)
                write(place, f"archive {lane}", topic, rows_of(found), ordered=False)
            audit = jobs.compact_check(spark, topics, allow_gaps=True, **place_of)
            wrong += [f"compact_check, {lane}: {one}" for one in audit.findings[:5]]
    finally:
        spark.stop()
    return wrong


def _in_time(work: Callable[[], object]) -> None:
    """Run work again if a Python worker did not start in Spark's ten seconds, as on a busy machine:
    it continues from its progress."""
    for left in range(_TRIES, 0, -1):
        try:
            work()
            return
        except TMSError as error:
            if "failed to connect back" not in error.message or left == 1:
                raise


def rows_of(found: Any) -> Iterator[list[object]]:
    """The rows of a reading from rows of Spark."""
    for one in found.toLocalIterator():
        yield row(
            one["partition"],
            one["offset"],
            one["id"],
            _bytes(one["key"]),
            _bytes(one["value"]),
            {cell["key"]: bytes(cell["value"]) for cell in one["headers"] or ()},
        )


def _bytes(cell: Any) -> bytes | None:
    return None if cell is None else bytes(cell)
