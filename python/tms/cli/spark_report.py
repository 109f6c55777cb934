"""`tms spark report`: numbers of published messages, by hour."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from tms.cli.parameters import TIME, TOPIC, session_command
from tms.cli.session import Session
from tms.cli.spark_running import SparkOptions, StoreOption, reading_from, started, watched

if TYPE_CHECKING:
    from tms.spark.jobs import Hour


@session_command("report")
def report(
    session: Session,
    options: SparkOptions,
    topics: Annotated[tuple[str, ...], TOPIC],
    since: Annotated[int | None, TIME, "From this time on: 2026-11-01T00:00Z, -7d. [all]"] = None,
    until: Annotated[int | None, TIME, "Before this time. [all]"] = None,
    store: StoreOption = None,
) -> None:
    """Messages, bytes, keys, sizes and gaps of TOPICS, by hour.

    \b
      tms spark report flights
      tms spark report flights orders --since 2026-11-01T00:00Z --json
    """
    place = reading_from(session, store)
    first, end = _moment(since), _moment(until)
    with started(options) as spark, watched(session, spark, "reading"):
        from tms.spark.jobs import report as run

        hours = run(spark, topics, **place._asdict(), since=first, until=end)
    rows = [_row(one) for one in hours]
    session.show(rows, rows)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)


def _row(hour: "Hour") -> dict[str, Any]:
    return hour._asdict() | {"hour": f"{hour.hour:%Y-%m-%dT%H:%MZ}"}
