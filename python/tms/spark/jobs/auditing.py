"""An audit of whole topics, divided into tasks of Spark.

driver     ranges of offsets
executors  blocks of a range ─▶ what was found in it
driver     what was found in the ranges of a partition follows each other ─▶ the audit
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tms.runtime.decoding import from_json
from tms.spark.jobs.audit_checking import COUNTS, AuditFinding, PartitionAudit, RangeAudit
from tms.spark.jobs.audit_stored import checked, planned
from tms.spark.jobs.place import Names, Subject, errors_told
from tms.spark.source.topics import Split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPLITS_PER_CORE = 4
_SPLIT_OFFSETS_MIN = 10_000  # less is not worth a task


class Audit(msgspec.Struct, frozen=True):
    """The result of an audit. `findings` are the first of each range; `wrong` of the partitions
    counts them all."""

    partitions: list[PartitionAudit]
    findings: list[AuditFinding]

    @property
    def is_sound(self) -> bool:
        """True if there is no finding."""
        return not any(part.wrong for part in self.partitions)


def compact_check(
    spark: "SparkSession",
    topics: Names,
    url: str | None = None,
    *,
    token: str | None = None,
    store: str | None = None,
    allow_gaps: bool = False,
) -> Audit:
    """Read everything that is stored of the topics, in parallel, and check order, ids and CRCs.

    A service shows everything, so an offset without a message is a fault, unless `allow_gaps`: an
    HBase whose coprocessor removes unreadable messages leaves gaps. With `store` only committed
    messages are read, and gaps are counted. Raises `TopicNotFound`, `Invalid`.
    """
    subject = Subject.of(topics, url, token, store)
    place, dense = subject.place, not (allow_gaps or store)
    splits = [split for topic in subject.topics for split in _splits(spark, subject, topic)]
    if not splits:
        return Audit([], [])

    def check(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                part = msgspec.json.encode(checked(place, splits[number], dense))
                yield pa.record_batch([pa.array([part], pa.binary())], names=["part"])

    with errors_told():
        tasks = spark.range(0, len(splits), 1, len(splits))
        rows = tasks.mapInArrow(check, "part binary").collect()
    parts = [from_json(row.part, RangeAudit) for row in rows]
    return _joined(sorted(parts, key=lambda part: (part.topic, part.partition, part.start)))


def _splits(spark: "SparkSession", subject: Subject, topic: str) -> Sequence[Split]:
    most = spark.sparkContext.defaultParallelism * _SPLITS_PER_CORE
    splits = planned(subject.place, topic, 1)
    offsets = sum(split.stop - split.start for split in splits)
    wanted = min(most, offsets // _SPLIT_OFFSETS_MIN)
    return planned(subject.place, topic, wanted) if wanted > len(splits) else splits


def _joined(parts: Sequence[RangeAudit]) -> Audit:
    audit = Audit([], [])
    for (topic, partition), of_place in groupby(parts, lambda part: (part.topic, part.partition)):
        ranges = [*of_place]
        counts = {name: sum(getattr(part, name) for part in ranges) for name in COUNTS}
        findings = [finding for part in ranges for finding in part.findings]
        last: tuple[int, int] | None = None
        for part in ranges:
            if last is not None and part.first is not None and part.first <= last:
                counts["wrong"] += 1
                what = f"ids go back: {part.first[0]}:{part.first[1]} follows {last[0]}:{last[1]}"
                findings.append(AuditFinding(topic, partition, part.start, part.stop, what))
            last = max(filter(None, (last, part.last)), default=None)
        audit.findings.extend(sorted(findings, key=lambda finding: finding.start))
        start, stop = ranges[0].start, ranges[-1].stop
        audit.partitions.append(PartitionAudit(topic, partition, start, stop, **counts))
    return audit
