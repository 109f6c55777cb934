"""`tms spark report`: what was published, by hour."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tms.cli.session import TIME, TOPIC, Session, Shared
from tms.cli.spark_running import reading_from, spark_options, started, store_option, watched

if TYPE_CHECKING:
    from tms.spark.jobs import Hour

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report", cls=Shared)
@click.argument("topics", type=TOPIC, nargs=-1, required=True)
@click.option("--since", type=TIME, help="From this time on: 2026-11-01T00:00Z, -7d. [all]")
@click.option("--until", type=TIME, help="Before this time. [all]")
@click.option("--html", type=_FILE, help="Write a page with plot and numbers to this file.")
@click.option("--png", type=_FILE, help="Write the plot to this file.")
@store_option
@spark_options
@click.pass_obj
def report(
    session: Session,
    /,
    topics: tuple[str, ...],
    since: int | None,
    until: int | None,
    html: Path | None,
    png: Path | None,
    store: str | None,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Messages, bytes, keys, sizes and gaps of TOPICS, by hour.

    \b
      tms spark report flights
      tms spark report flights orders --since 2026-11-01T00:00Z --html report.html --json
    """
    place = reading_from(session, store)
    first, end = _moment(since), _moment(until)
    with started(master, confs) as spark:
        from tms.spark import jobs

        with watched(session, spark, "reading"):
            hours = jobs.report(
                spark,
                topics,
                place.url,
                token=place.token,
                store=place.store,
                since=first,
                until=end,
            )
    if png is not None:
        jobs.write_png(hours, png)
    if html is not None:
        jobs.write_html(hours, html)
    rows = [_row(one) for one in hours]
    session.show(rows, rows)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)


def _row(hour: "Hour") -> dict[str, Any]:
    return hour._asdict() | {"hour": f"{hour.hour:%Y-%m-%dT%H:%MZ}"}
