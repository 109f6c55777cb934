"""TMS for Spark: topics as data sources, with pyspark 4.2 and newer, or 3.5.

    spark = tms.spark.session()                    # everything set for the pyspark that is here
    tms.spark.register(spark)                      # or: in a session of your own

    rows            blocks → Arrow record batches; knows nothing of Spark
    source          the data source "tms", its reading half, from a service or HBase itself
    sink            its writing half
    options         the options of both halves: names, and how values are read
    connector       the HBase connector, for pyspark 3.5
    jobs            archive, restore, report, audit, SQL
    archive_limits  bounds of an archive
    sessions        sessions with everything set
    runtime         which pyspark and which Java there are, and whether they fit

Importing this module loads neither pyspark nor pyarrow.
"""

from typing import TYPE_CHECKING, Any

from tms.spark.sessions import register, session

if TYPE_CHECKING:
    from tms.spark.connector import read

__all__ = ["session", "register", "read"]


def __getattr__(name: str) -> Any:
    """Import the connector when it is first used (PEP 562)."""
    if name == "read":
        from tms.spark.connector import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
