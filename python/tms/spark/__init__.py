"""TMS for Spark: topics as data sources, with pyspark 4.2 and newer, or 3.5.

    spark = tms.spark.session()                    # everything set for the pyspark that is here
    tms.spark.register(spark)                      # or: in a session of your own

    rows/      blocks → Arrow record batches; knows nothing of Spark
    topics/    where topics are read from: a service, or HBase itself
    source/    the data source "tms", its reading half
    sink/      its writing half
    naming     the options of both halves by name
    connector/ the HBase connector, for pyspark 3.5
    jobs/      archive, restore, report, audit, SQL
    sessions   sessions with everything set
    runtime    which pyspark and which Java there are, and whether they fit

Importing this module loads neither pyspark nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tms.spark.connector import read
    from tms.spark.sessions import register, session

__all__ = ["session", "register", "read"]

_HOMES = {
    "session": "tms.spark.sessions",
    "register": "tms.spark.sessions",
    "read": "tms.spark.connector",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
