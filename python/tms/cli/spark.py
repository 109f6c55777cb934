"""`tms spark …`: checks of Spark's requirements, and jobs on topics."""

import click

from tms.cli.checks import spark as checks
from tms.cli.checks.machine import Machine
from tms.cli.findings import show
from tms.cli.session import CommandGroup, Session, session_command
from tms.cli.spark_archive import archive, restore
from tms.cli.spark_audit import compact_check
from tms.cli.spark_report import report
from tms.cli.spark_running import require_no_directory, store_of_environment, store_option
from tms.cli.spark_sql import sql
from tms.spark.runtime import Runtime


@click.group("spark", cls=CommandGroup)
def command() -> None:
    """Topics in Spark.

    \b
      tms spark doctor --url http://127.0.0.1:7070
      tms spark doctor --store hbase://127.0.0.1:9090
      tms spark archive flights /archive/flights
      tms spark sql 'select count(*) from flights'
    """


for job in (archive, restore, report, compact_check, sql):
    command.add_command(job)


@session_command("doctor", command)
@store_option
@click.option("--all", "all_", is_flag=True, help="Show good findings too.")
def doctor(session: Session, store: str | None, all_: bool) -> int:
    """Check Java, pyspark, Arrow, the Python of Spark's workers, and the way to the topics.

    Changes nothing, and does not start Spark. Each finding comes with the way to mend it.
    """
    require_no_directory(session)
    service = session.remote().meant
    url = service.url if service.named or service.context is not None else None
    target = checks.SparkTarget(url, store or store_of_environment())
    return show(session, checks.check(Runtime(), target, Machine()), all_)
