"""A report as a plot.

    messages               in each hour
    keys and values        bytes in each hour
    size of a message      median, p99, largest
    gap between messages   p99, longest

Invariants

* Times are UTC, and say so; numbers have units.
* An hour without messages shows as none, not as a line from one neighbour to the other.
* Equal reports make equal files.
"""

import io
import math
from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tms.errors import Invalid
from tms.spark.jobs.report_measures import Hour
from tms.spark.jobs.report_units import summary, title, with_size, with_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#744210")
TOPICS_MAX = len(_COLOURS)  # more lines cannot be told apart
_INCHES = (10.5, 10.0)
_DPI = 130
_GREY = "#4a5568"
_HOUR = timedelta(hours=1)
_SHORTEST_S = 0.001  # times are in ms: shorter is none
_STYLE: Any = {
    "font.sans-serif": ["DejaVu Sans"],  # it comes with matplotlib
    "font.size": 10.0,
    "axes.edgecolor": "#a0aec0",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": _GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.xmargin": 0.01,
    "grid.color": "#e2e8f0",
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "svg.hashsalt": "tms",
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def write_png(hours: Sequence[Hour], path: str | Path) -> None:
    """The plot as a PNG file. Raises `Invalid` when there is nothing to show, or too much."""
    Path(path).write_bytes(drawn(hours, "png"))


def drawn(hours: Sequence[Hour], form: str) -> bytes:
    """The plot as `png` or `svg`. Raises `Invalid` when there is nothing to show, or too much."""
    topics = {hour.topic for hour in hours}
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise Invalid(
            f"A plot shows 1 to {TOPICS_MAX} topics that have messages, got {len(topics)}.",
            field="topics",
        )
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        _draw(figure, hours)
        made = io.BytesIO()
        figure.savefig(made, format=form, metadata={"Date": None} if form == "svg" else None)
    return made.getvalue()


def _draw(figure: "Figure", hours: Sequence[Hour]) -> None:
    counts, volumes, sizes, gaps = figure.subplots(4, 1, sharex=True, height_ratios=(3, 2, 2, 2))
    by_topic = [
        (topic, list(of_topic)) for topic, of_topic in groupby(hours, lambda hour: hour.topic)
    ]
    alone = len(by_topic) == 1
    for colour, (topic, of_topic) in zip(_COLOURS, by_topic, strict=False):
        grid = _Grid(of_topic, colour)
        grid.area(counts, lambda hour: hour.messages, topic, alone)
        grid.area(volumes, lambda hour: hour.bytes, topic, alone)
        grid.line(sizes, lambda hour: max(1, hour.size_p50), "-")
        grid.line(sizes, lambda hour: max(1, hour.size_p99), "--")
        grid.line(sizes, lambda hour: max(1, hour.size_max), ":")
        grid.line(gaps, lambda hour: _drawable(hour.gap_p99_s), "--")
        grid.line(gaps, lambda hour: _drawable(hour.gap_max_s), ":")
    _count_axis(counts, "Messages in each hour")
    _byte_axis(volumes, "Keys and values in each hour", 0)
    _byte_axis(sizes, "Size of a message (key and value)", 2)
    _time_axis(gaps, "Gap between messages of a partition")
    _lines_legend(sizes, {"median": "-", "p99": "--", "largest": ":"})
    _lines_legend(gaps, {"p99": "--", "longest": ":"})
    if not alone:
        counts.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=TOPICS_MAX)
    _date_axis(gaps)
    figure.suptitle(title(hours), x=0.008, ha="left", fontsize=14, fontweight="bold")
    figure.supxlabel(f"time (UTC)\n{summary(hours)}", fontsize=9.5, color=_GREY)


class _Grid:
    """The hours of a topic, those without messages too."""

    def __init__(self, hours: Sequence[Hour], colour: str) -> None:
        from matplotlib.dates import date2num

        self._colour = colour
        first, last = hours[0].hour, hours[-1].hour
        there = {hour.hour: hour for hour in hours}
        starts = [first + i * _HOUR for i in range((last - first) // _HOUR + 1)]
        self._hours = [there.get(start) for start in starts]
        self._edges = date2num([*starts, last + _HOUR])  # type: ignore[no-untyped-call]

    def area(self, axes: "Axes", of: Callable[[Hour], int], topic: str, filled: bool) -> None:
        """A number that is 0 in an hour without messages."""
        values = [0 if hour is None else of(hour) for hour in self._hours]
        style: Any = {"fill": True, "alpha": 0.85} if filled else {"linewidth": 1.3}
        axes.stairs(values, self._edges, color=self._colour, label=topic, **style)

    def line(self, axes: "Axes", of: Callable[[Hour], float], style: str) -> None:
        """A number that an hour without messages does not have."""
        values = [math.nan if hour is None else of(hour) for hour in self._hours]
        axes.stairs(
            values, self._edges, baseline=None, color=self._colour, linestyle=style, linewidth=1.4
        )


def _drawable(seconds: float | None) -> float:
    return math.nan if seconds is None else max(seconds, _SHORTEST_S)


def _count_axis(axes: "Axes", name: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(name)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.set_ylabel("messages")


def _byte_axis(axes: "Axes", name: str, log_base: int) -> None:
    """Ticks at powers of two, or, without a base, at round multiples of one."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_title(name)
    if log_base:
        axes.set_yscale("log", base=log_base)
    else:
        axes.set_ylim(bottom=0)
    low, high = axes.get_ylim()
    if log_base:
        least, most = math.floor(math.log2(low)), math.ceil(math.log2(high))
        step = max(1, -(-(most - least) // 5))
        ticks = [2.0**power for power in range(least, most + step, step)]
        axes.set_ylim(ticks[0], ticks[-1])
    else:
        step = 2 ** max(0, math.ceil(math.log2(high / 5)))
        ticks = [float(step * i) for i in range(math.ceil(high / step) + 1)]
        axes.set_ylim(0, ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: with_size(size)))
    axes.set_ylabel("bytes")


def _time_axis(axes: "Axes", name: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000)
    axes.set_title(name)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if not axes.has_data() or math.isnan(low):
        low, high = _SHORTEST_S, 1.0
    least = max((tick for tick in ticks if tick <= low * 1.01), default=ticks[0])
    most = min((tick for tick in ticks if tick >= high and tick > least), default=ticks[-1])
    axes.set_ylim(least, most)
    shown = [tick for tick in ticks if least <= tick <= most]
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_gap_tick))
    axes.set_ylabel("time")


def _gap_tick(seconds: float, _: int | None = None) -> str:
    return "≤ 1 ms" if seconds <= _SHORTEST_S else with_time(seconds)


def _date_axis(axes: "Axes") -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator: Any = AutoDateLocator(minticks=4, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    shown: Any = ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(shown)


def _lines_legend(axes: "Axes", styles: dict[str, Any]) -> None:
    """What the kinds of lines mean, whatever their colour; above the panel, not over the lines."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=_GREY, linestyle=style) for style in styles.values()]
    axes.legend(lines, [*styles], loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(lines))
