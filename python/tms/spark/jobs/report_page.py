"""A report as a page that needs nothing beside it: the plot, and the numbers below.

* What came from elsewhere (names of topics) is text in it, never markup.
"""

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from tms.spark.jobs.report_measures import Hour
from tms.spark.jobs.report_plot import drawn
from tms.spark.jobs.report_units import summary, title, with_size, with_time

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem }}
h2 {{ font-size: 1.1rem; margin-top: 2rem }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e2e8f0 }}
th {{ color: #4a5568; font-weight: 600 }}
th:first-child, td:first-child {{ text-align: left }}
</style>
<figure role="img" aria-label="{title}. {summary}">
{picture}</figure>
{tables}
<p>Sizes are of key and value. A gap lies between two messages of a partition. Unseen are the
messages whose transactions were rolled back: nobody may see them.</p>
</html>
"""
_COLUMNS: tuple[tuple[str, Callable[[Hour], str]], ...] = (
    ("hour (UTC)", lambda hour: f"{hour.hour:%Y-%m-%d %H:%M}"),
    ("messages", lambda hour: f"{hour.messages:,}"),
    ("bytes", lambda hour: with_size(hour.bytes)),
    ("keys", lambda hour: f"{hour.keys:,}"),
    ("size p50", lambda hour: with_size(hour.size_p50)),
    ("p90", lambda hour: with_size(hour.size_p90)),
    ("p99", lambda hour: with_size(hour.size_p99)),
    ("max", lambda hour: with_size(hour.size_max)),
    ("gap p50", lambda hour: with_time(hour.gap_p50_s)),
    ("p99", lambda hour: with_time(hour.gap_p99_s)),
    ("max", lambda hour: with_time(hour.gap_max_s)),
    ("unseen", lambda hour: f"{hour.unseen:,}"),
)


def write_html(hours: Sequence[Hour], path: str | Path) -> None:
    """The plot and all numbers. Raises `Invalid` when there is nothing to show, or too much."""
    svg = drawn(hours, "svg").decode()
    tables = [
        f"<h2>{escape(topic)}</h2>\n{_table(list(of_topic))}"
        for topic, of_topic in groupby(hours, lambda hour: hour.topic)
    ]
    page = _PAGE.format(
        title=escape(title(hours)),
        summary=escape(summary(hours)),
        picture=svg[svg.index("<svg") :],
        tables="\n".join(tables),
    )
    Path(path).write_text(page, encoding="utf-8")


def _table(hours: Sequence[Hour]) -> str:
    head = "".join(f"<th>{name}</th>" for name, _ in _COLUMNS)
    lines = (
        "<tr>" + "".join(f"<td>{escape(shown(hour))}</td>" for _, shown in _COLUMNS) + "</tr>"
        for hour in hours
    )
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(lines) + "\n</table>"
