"""Charts: series of values to SVG, with a text that says the same.

    lines of values, a span of time ─▶ Chart: SVG · text · numbers (now, peak and when, mean)

* Unknown values are gaps; a single value between two gaps is a dot. Nothing is drawn where nothing
  is known.
* A chart has no style and no script of its own: the style sheet draws it by its classes.
* Names are escaped. Coordinates are whole numbers and relative, so that an hour of a line takes
  less than 2 KiB.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import NamedTuple

from tms.console.rendering import duration, number, size, time, visible
from tms.model.history import Values

WIDTH = 640
HEIGHT = 150
LEFT = 70  # the edges of the drawing
RIGHT = 632
TOP = 12
BOTTOM = 128
LINES_MAX = 3
TICK_MS = 15 * 60_000
NAME_CHARS_MAX = 80
_NICE = (1, 2, 5, 10)
_NICE_BINARY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)


class Unit(NamedTuple):
    """The unit of a chart's values. `form` writes one for people; `base` is the step from one unit
    to the next larger one."""

    form: Callable[[float], str]
    base: int
    nice: Sequence[int]


class Line(NamedTuple):
    """A line of a chart: its name for people, and its values, that of the oldest step first."""

    name: str
    values: Values


class Span(NamedTuple):
    """The time of a chart: the newest step ends at `end_ms` since 1970."""

    end_ms: int
    step_ms: int


class LineNumbers(NamedTuple):
    """The numbers of a line, written for people: the newest one, the largest one and its time, the
    mean. `?` where it is unknown."""

    name: str
    now: str
    peak: str
    peak_ms: int
    mean: str


class Chart(NamedTuple):
    """A chart. `svg`: HTML that is escaped; empty if nothing is known. `text`: what it shows, in
    words. `known`: True if something is."""

    title: str
    svg: str
    text: str
    lines: list[LineNumbers]

    @property
    def known(self) -> bool:
        """True if any value is known."""
        return bool(self.svg)


def _count(value: float) -> str:
    return number(round(value)) if value >= 100 or value == round(value) else f"{value:.3g}"


COUNT = Unit(_count, 1_000, _NICE)
PER_S = Unit(lambda value: f"{_count(value)}/s", 1_000, _NICE)
BYTES = Unit(lambda value: size(round(value)), 1_024, _NICE_BINARY)
BYTES_PER_S = Unit(lambda value: f"{size(round(value))}/s", 1_024, _NICE_BINARY)


def chart(title: str, lines: Sequence[Line], span: Span, unit: Unit) -> Chart:
    """A chart of at most `LINES_MAX` lines with equally many values."""
    assert 0 < len(lines) <= LINES_MAX, "a chart with more lines cannot be read"
    title = visible(title)[:NAME_CHARS_MAX]
    lines = [Line(visible(name)[:NAME_CHARS_MAX], values) for name, values in lines]
    numbers = [_numbers(line, span, unit) for line in lines]
    known = [value for line in lines for value in line.values if value is not None]
    text = " ".join(_sentence(one) for one in numbers)
    if not known:
        return Chart(title, "", "Nothing is known of this time yet.", numbers)
    missing = sum(value is None for value in lines[0].values)
    if missing:
        steps = len(lines[0].values)
        text += f" Unknown for {duration(missing * span.step_ms)} of "
        text += f"{duration(steps * span.step_ms)}."
    top = _top(max(known), unit)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(text)}</desc>",
        *_grid(top, unit),
        *_ticks(span, len(lines[0].values)),
    ]
    for nth, line in enumerate(lines):
        places = _places(line.values, top)
        if len(lines) == 1:
            parts.append(f'<path class="area" d="{_areas(places)}"/>')
        parts.append(f'<path class="line line-{nth}" d="{_path(places)}"/>')
    return Chart(title, "".join([*parts, "</svg>"]), text, numbers)


def _numbers(line: Line, span: Span, unit: Unit) -> LineNumbers:
    known = [(value, at) for at, value in enumerate(line.values) if value is not None]
    if not known:
        return LineNumbers(line.name, "?", "?", 0, "?")
    peak, at = max(known, key=lambda one: one[0])
    peak_ms = span.end_ms - (len(line.values) - 1 - at) * span.step_ms
    mean = math.fsum(value for value, _ in known) / len(known)
    last = line.values[-1]
    now = "?" if last is None else unit.form(last)
    return LineNumbers(line.name, now, unit.form(peak), peak_ms, unit.form(mean))


def _sentence(one: LineNumbers) -> str:
    if not one.peak_ms:
        return f"{one.name}: unknown."
    when = time(one.peak_ms)
    return f"{one.name}: now {one.now}, peak {one.peak} at {when}, mean {one.mean}."


def _top(peak: float, unit: Unit) -> float:
    """The value at the top: the least nice one that is not below the peak."""
    if peak <= 0:
        return 1.0
    power = math.floor(math.log(peak, unit.base)) if peak >= 1 else 0
    scale = float(unit.base) ** power
    if unit.nice is _NICE and peak > 0:
        scale = 10.0 ** math.floor(math.log10(peak))
    return next((one * scale for one in unit.nice if one * scale >= peak), unit.base * scale)


def _grid(top: float, unit: Unit) -> list[str]:
    """The horizontal lines, and their values."""
    parts = []
    for part in (0, 1, 2):
        y = BOTTOM - (BOTTOM - TOP) * part // 2
        label = escape(unit.form(top * part / 2))
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 3}">{label}</text>')
    return parts


def _ticks(span: Span, steps: int) -> list[str]:
    """The times below the drawing, in UTC."""
    first_ms = span.end_ms - max(1, steps - 1) * span.step_ms
    parts = []
    for at_ms in range(first_ms - first_ms % TICK_MS + TICK_MS, span.end_ms + 1, TICK_MS):
        x = LEFT + (RIGHT - LEFT) * (at_ms - first_ms) // max(1, span.end_ms - first_ms)
        text = datetime.fromtimestamp(at_ms // 1_000, UTC).strftime("%H:%M")
        parts.append(f'<path class="tick" d="M{x} {BOTTOM}v4"/>')
        parts.append(f'<text class="x" x="{x}" y="{BOTTOM + 16}">{text}</text>')
    return parts


def _places(values: Values, top: float) -> list[list[tuple[int, int]]]:
    """The points of each run of known values."""
    runs: list[list[tuple[int, int]]] = [[]]
    last = max(1, len(values) - 1)
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            x = LEFT + (RIGHT - LEFT) * at // last
            y = BOTTOM - round((BOTTOM - TOP) * min(max(value, 0), top) / top)
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _path(runs: Sequence[Sequence[tuple[int, int]]]) -> str:
    """The lines; a run of one point is a dot, which a line with a round end shows."""
    return "".join(f"M{run[0][0]} {run[0][1]}{_way(run) or 'h0'}" for run in runs)


def _areas(runs: Sequence[Sequence[tuple[int, int]]]) -> str:
    """The areas below them."""
    return "".join(f"M{run[0][0]} {BOTTOM}V{run[0][1]}{_way(run)}V{BOTTOM}z" for run in runs)


def _way(run: Sequence[tuple[int, int]]) -> str:
    """The steps from a point to the next."""
    way: list[str] = []
    level = 0  # of the way along which nothing changes
    for (x, y), (next_x, next_y) in pairwise(run):
        if y == next_y:
            level += next_x - x
            continue
        if level:
            way.append(f"h{level}")
            level = 0
        down = f"{next_y - y}"
        way.append(f"l{next_x - x}{down if down.startswith('-') else ' ' + down}")
    return "".join([*way, f"h{level}" if level else ""])
