"""Jobs on whole topics: each a function that takes a session of Spark and says where topics are.

    archive         topic → Parquet, exactly once, resumable
    archived        the rows of an archive
    restore         archive → topic, in one transaction
    report          messages, bytes, keys, sizes and gaps, by hour
    compact_check   an audit of everything that is stored
    sql             topics as views

All take `url` (and `token`) of a service, or `store` of an HBase. `tms spark …` are their commands.
"""

from tms.spark.jobs.archive_layout import archived
from tms.spark.jobs.archiving import Archived, archive
from tms.spark.jobs.audit_checking import AuditFinding, PartitionAudit
from tms.spark.jobs.auditing import Audit, compact_check
from tms.spark.jobs.report_measures import Hour, report
from tms.spark.jobs.report_page import write_html
from tms.spark.jobs.report_plot import write_png
from tms.spark.jobs.restoring import Restored, restore
from tms.spark.jobs.views import sql

__all__ = [
    "archive",
    "archived",
    "restore",
    "report",
    "write_html",
    "write_png",
    "compact_check",
    "sql",
    "Archived",
    "Audit",
    "AuditFinding",
    "Hour",
    "PartitionAudit",
    "Restored",
]
