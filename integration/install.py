"""Installing TMS in a namespace of HBase, as an operator does it."""

from pathlib import Path

from tms.clock import SystemClock
from tms.store.hbase.admin import Admin, Table
from tms.store.hbase.pool import Place
from tms.store.hbase.rows import MESSAGES, METADATA, PAYLOADS

JAR = Path(__file__).resolve().parents[1] / "coprocessor/target/tms-coprocessor-0.1.0.jar"
REFRESH_MS = 500
_OBSERVER = "io.tms.hbase.RetentionObserver"


def install(url: str, jar: Path | None = None) -> None:
    """Make namespace and tables, with the coprocessor if there is a jar."""
    admin = Admin(Place.parse(url), SystemClock())
    attributes = {}
    if jar is not None:
        attributes = {
            "coprocessor$1": f"file://{jar}|{_OBSERVER}|1073741823|",
            "tms.refresh.ms": str(REFRESH_MS),
        }
    admin.create_namespace()
    admin.create_table(Table(METADATA))
    for table in (MESSAGES, PAYLOADS):
        admin.create_table(Table(table, attributes), [b"8"])
    admin.close()
