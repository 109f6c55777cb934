"""`tms spark report`: what was published, by hour."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tms.cli.session import START, TOPIC, Session, Shared
from tms.cli.spark_running import spark_options, started, store_option, watched, where
from tms.model.position import Position, PositionKind

if TYPE_CHECKING:
    from tms.spark.jobs import Hour

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report", cls=Shared)
@click.argument("topics", type=TOPIC, nargs=-1, required=True)
@click.option("--since", metavar="TIME", help="From this time on: 2026-11-01T00:00Z. [all]")
@click.option("--until", metavar="TIME", help="Before this time. [all]")
@click.option("--html", type=_FILE, help="Write a page with plot and numbers to this file.")
@click.option("--png", type=_FILE, help="Write the plot to this file.")
@store_option
@spark_options
@click.pass_obj
def report(
    session: Session,
    /,
    topics: tuple[str, ...],
    since: str | None,
    until: str | None,
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
    place = where(session, store)
    first, end = _time("--since", since), _time("--until", until)
    with started(master, confs) as spark:
        from tms.spark import jobs

        with watched(session, spark, "reading"):
            hours = jobs.report(spark, topics, place.url, store=place.store, since=first, until=end)
    if png is not None:
        jobs.write_png(hours, png)
    if html is not None:
        jobs.write_html(hours, html)
    rows = [_row(one) for one in hours]
    session.show(rows, rows)


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        position = START.convert(text, None, None)
    except click.BadParameter:
        position = None
    if not isinstance(position, Position) or position.kind is not PositionKind.TIME:
        raise click.BadParameter(
            f"A time is like 2026-11-01T00:00Z, got {text!r}.", param_hint=option
        )
    return datetime.fromtimestamp(position.number / 1_000, UTC)


def _row(hour: "Hour") -> dict[str, Any]:
    return hour._asdict() | {"hour": f"{hour.hour:%Y-%m-%dT%H:%MZ}"}
