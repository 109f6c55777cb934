"""Jobs on whole topics: each a function that takes a session of Spark and says where topics are.

    archive         topic → Parquet, exactly once, resumable
    archived        the rows of an archive
    restore         archive → topic, in one transaction
    report          messages, bytes, keys, sizes and gaps, by hour
    compact_check   an audit of everything that is stored
    sql             topics as views

All take `url` (and `token`) of a service, or `store` of an HBase. `tms spark …` are their commands.
Importing this module does not load pyspark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "archive": "tms.spark.jobs.archiving",
    "archived": "tms.spark.jobs.archive_layout",
    "restore": "tms.spark.jobs.restoring",
    "report": "tms.spark.jobs.report_measures",
    "write_html": "tms.spark.jobs.report_page",
    "write_png": "tms.spark.jobs.report_plot",
    "compact_check": "tms.spark.jobs.auditing",
    "sql": "tms.spark.jobs.views",
    "Archived": "tms.spark.jobs.archiving",
    "Audit": "tms.spark.jobs.auditing",
    "AuditFinding": "tms.spark.jobs.audit_checking",
    "Hour": "tms.spark.jobs.report_measures",
    "PartitionAudit": "tms.spark.jobs.audit_checking",
    "Restored": "tms.spark.jobs.restoring",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
