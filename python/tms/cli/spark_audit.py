"""`tms spark compact-check`: an audit of everything that is stored of topics."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from tms.cli.output import Format, table_text, write
from tms.cli.session import TOPIC, Session, session_command
from tms.cli.spark_running import reading_from, spark_options, started, store_option, watched


@session_command("compact-check")
@click.argument("topics", type=TOPIC, nargs=-1, required=True)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help="Offsets at which nothing is stored are fine: the coprocessor of HBase removes messages.",
)
@store_option
@spark_options
def compact_check(
    session: Session,
    /,
    topics: tuple[str, ...],
    allow_gaps: bool,
    store: str | None,
    master: str | None,
    confs: tuple[str, ...],
) -> int:
    """Read all that is stored of TOPICS, in parallel, and check order, ids and CRCs.

    Ends with 1 if something is wrong; each finding has its place.
    """
    place = reading_from(session, store)
    with started(master, confs) as spark, watched(session, spark, "checking"):
        from tms.spark.jobs import compact_check as run

        audit = run(
            spark,
            topics,
            **place._asdict(),
            allow_gaps=allow_gaps,
        )
    document: dict[str, Any] = msgspec.to_builtins(audit)
    if session.format is Format.TABLE:
        write(_tables(document["partitions"], document["findings"]))
    else:
        session.show(document, document["partitions"])
    wrong = sum(partition.wrong for partition in audit.partitions)
    messages = sum(partition.messages for partition in audit.partitions)
    session.say(f"{messages:,} messages, {wrong:,} findings")
    return 0 if audit.is_sound else 1


def _tables(partitions: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]]) -> str:
    text = table_text(partitions)
    return f"{text}\n{table_text(findings)}" if findings else text
