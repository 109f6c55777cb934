"""`tms spark …`: checks of Spark's requirements, and jobs on topics."""

from typing import Annotated

import click

from tms.cli.checks import spark as checks
from tms.cli.checks.machine import Machine
from tms.cli.findings import show
from tms.cli.parameters import session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.spark_archive import archive, restore
from tms.cli.spark_audit import compact_check
from tms.cli.spark_report import report
from tms.cli.spark_running import StoreOption, require_no_directory, store_of_environment
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
def doctor(
    session: Session,
    store: StoreOption = None,
    all_: Annotated[bool, "--all", "Show good findings too."] = False,
) -> int:
    """Check Java, pyspark, Arrow, the Python of Spark's workers, and the way to the topics.

    Changes nothing, and does not start Spark. Each finding comes with the way to mend it.
    """
    require_no_directory(session)
    service = session.remote().meant
    url = service.url if service.named or service.context is not None else None
    target = checks.SparkTarget(url, store or store_of_environment())
    return show(session, checks.check(Runtime(), target, Machine()), all_)
