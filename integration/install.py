"""Installing TMS in a namespace of HBase, as an operator does it."""

from tms.clock import SystemClock
from tms.store.hbase.admin import Admin, Table
from tms.store.hbase.pool import Place
from tms.store.hbase.rows import TABLES


def install(url: str) -> None:
    """Make namespace and tables."""
    admin = Admin(Place.parse(url), SystemClock())
    admin.create_namespace()
    for table in TABLES:
        admin.create_table(Table(table))
    admin.close()
