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
    from tms.spark.jobs.archives.layout import archived
    from tms.spark.jobs.archives.restoring import Restored, restore
    from tms.spark.jobs.archives.writing import Archived, archive
    from tms.spark.jobs.audit.checking import Finding
    from tms.spark.jobs.audit.running import Audit, PartitionAudit, compact_check
    from tms.spark.jobs.reports.measuring import Hour, report
    from tms.spark.jobs.reports.page import write_html
    from tms.spark.jobs.reports.plot import write_png
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
    "Finding",
    "Hour",
    "PartitionAudit",
    "Restored",
]

_HOMES = {
    "archive": "tms.spark.jobs.archives.writing",
    "archived": "tms.spark.jobs.archives.layout",
    "restore": "tms.spark.jobs.archives.restoring",
    "report": "tms.spark.jobs.reports.measuring",
    "write_html": "tms.spark.jobs.reports.page",
    "write_png": "tms.spark.jobs.reports.plot",
    "compact_check": "tms.spark.jobs.audit.running",
    "sql": "tms.spark.jobs.views",
    "Archived": "tms.spark.jobs.archives.writing",
    "Audit": "tms.spark.jobs.audit.running",
    "Finding": "tms.spark.jobs.audit.checking",
    "Hour": "tms.spark.jobs.reports.measuring",
    "PartitionAudit": "tms.spark.jobs.audit.running",
    "Restored": "tms.spark.jobs.archives.restoring",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
