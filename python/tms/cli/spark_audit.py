"""`tms spark compact-check`: an audit of everything that is stored of topics."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from tms.cli.output import Format, table_text, write
from tms.cli.parameters import TOPIC, session_command
from tms.cli.session import Session
from tms.cli.spark_running import SparkOptions, StoreOption, reading_from, started, watched


@session_command("compact-check")
def compact_check(
    session: Session,
    options: SparkOptions,
    topics: Annotated[tuple[str, ...], TOPIC],
    allow_gaps: Annotated[
        bool,
        "Offsets at which nothing is stored are fine: the coprocessor of HBase removes messages.",
    ] = False,
    store: StoreOption = None,
) -> int:
    """Read all that is stored of TOPICS, in parallel, and check order, ids and CRCs.

    Ends with 1 if something is wrong; each finding has its place.
    """
    place = reading_from(session, store)
    with started(options) as spark, watched(session, spark, "checking"):
        from tms.spark.jobs import compact_check as run

        audit = run(spark, topics, **place._asdict(), allow_gaps=allow_gaps)
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
