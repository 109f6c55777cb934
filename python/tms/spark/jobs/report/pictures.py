"""A report as a plot, and as a page that needs nothing beside it.

    messages per hour     bars; several topics side by side as lines
    bytes per hour
    size of a message     median, p99, largest
    gap between messages  p99, longest

Invariants

* Times are UTC, and say so; numbers have units.
* What came from elsewhere (names of topics) is text in a page, never markup.
* A plot takes as much room for a year as for a day: an hour is never wider than it is on average.
"""

import io
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tms.spark.jobs.report.measuring import Hour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (11.0, 10.5)
_DPI = 130
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#744210")
_TOPICS_MAX = len(_COLOURS)  # more lines cannot be told apart
_GREY = "#4a5568"
_HOUR = timedelta(hours=1)
_STYLE = {
    "font.size": 10.0,
    "axes.edgecolor": "#a0aec0",
    "axes.labelcolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.grid": True,
    "grid.color": "#e2e8f0",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "tms",
}
