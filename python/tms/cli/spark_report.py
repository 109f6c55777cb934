"""`tms spark report`: numbers of published messages, by hour."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tms.cli.session import TIME, TOPIC, Session, session_command
from tms.cli.spark_running import reading_from, spark_options, started, store_option, watched

if TYPE_CHECKING:
    from tms.spark.jobs import Hour


@session_command("report")
@click.argument("topics", type=TOPIC, nargs=-1, required=True)
@click.option("--since", type=TIME, help="From this time on: 2026-11-01T00:00Z, -7d. [all]")
@click.option("--until", type=TIME, help="Before this time. [all]")
@store_option
@spark_options
def report(
    session: Session,
    /,
    topics: tuple[str, ...],
    since: int | None,
    until: int | None,
    store: str | None,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Messages, bytes, keys, sizes and gaps of TOPICS, by hour.

    \b
      tms spark report flights
      tms spark report flights orders --since 2026-11-01T00:00Z --json
    """
    place = reading_from(session, store)
    first, end = _moment(since), _moment(until)
    with started(master, confs) as spark, watched(session, spark, "reading"):
        from tms.spark.jobs import report as run

        hours = run(
            spark,
            topics,
            **place._asdict(),
            since=first,
            until=end,
        )
    rows = [_row(one) for one in hours]
    session.show(rows, rows)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)


def _row(hour: "Hour") -> dict[str, Any]:
    return hour._asdict() | {"hour": f"{hour.hour:%Y-%m-%dT%H:%MZ}"}
