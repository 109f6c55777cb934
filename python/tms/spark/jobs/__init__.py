"""Jobs on whole topics: functions that take a session of Spark and the place of the topics.

    place            the topics of a job, and its errors
    archiving        `archive`: topic → Parquet, exactly once, resumable
    archive_layout   `archived`: the rows of an archive, and the files of its directory
    restoring        `restore`: archive → topic, in one transaction
    reporting        `report`: messages, bytes, keys, sizes and gaps, by hour
    auditing         `compact_check`: an audit of everything that is stored
    audit_stored     the blocks of an audit, from a service or from HBase
    audit_checking   the rules for the blocks of a partition, without Spark
    views            `sql`: topics as views

All take `url` (and `token`) of a service, or `store` of an HBase. `tms spark …` are their commands.
"""

from tms.spark.jobs.archive_layout import archived
from tms.spark.jobs.archiving import Archived, archive
from tms.spark.jobs.audit_checking import AuditFinding, PartitionAudit
from tms.spark.jobs.auditing import Audit, compact_check
from tms.spark.jobs.reporting import Hour, report
from tms.spark.jobs.restoring import Restored, restore
from tms.spark.jobs.views import sql

__all__ = [
    "archive",
    "archived",
    "restore",
    "report",
    "compact_check",
    "sql",
    "Archived",
    "Audit",
    "AuditFinding",
    "Hour",
    "PartitionAudit",
    "Restored",
]
