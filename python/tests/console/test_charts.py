"""Charts: well-formed, escaped, small, and truthful in their words."""

import re
from xml.etree import ElementTree

import pytest

from tms.console.charts import BYTES, BYTES_PER_S, COUNT, PER_S, Line, Span, Unit, chart
from tms.model.history import STEP_S, STEPS

SPAN = Span(1_700_000_000_000, STEP_S * 1_000)
HOUR = [float(n % 50) for n in range(STEPS)]


def paths(svg: str, kind: str) -> list[str]:
    """The `d` of the paths of a class."""
    return [
        path.attrib["d"]
        for path in ElementTree.fromstring(svg).iter("path")
        if path.attrib["class"].split()[0] == kind
    ]


def points(d: str) -> list[tuple[int, int]]:
    """The points of a path, each run after the others."""
    found: list[tuple[int, int]] = []
    x = y = 0
    for command, rest in re.findall(r"([MlhVz])([-\d ]*)", d):
        numbers = [int(one) for one in re.findall(r"-?\d+", rest)]
        match command:
            case "M":
                x, y = numbers
            case "l":
                x, y = x + numbers[0], y + numbers[1]
            case "h":
                x += numbers[0]
        found.append((x, y))
    return found


def test_a_chart_says_what_it_shows() -> None:
    values = [*[None] * 3, 1.0, 8.0, 2.0, 1.0]
    drawn = chart("Lag", [Line("orders", values)], SPAN, COUNT)
    assert drawn.text == (
        "orders: now 1, peak 8 at 2023-11-14 22:13:00.000Z, mean 3. Unknown for 30 s of 1 min 10 s."
    )
    assert drawn.lines[0].peak_ms == SPAN.end_ms - 2 * SPAN.step_ms
    root = ElementTree.fromstring(drawn.svg)
    assert root.attrib["role"] == "img"
    assert [root[0].tag, root[0].text] == ["title", "Lag"]
    assert [root[1].tag, root[1].text] == ["desc", drawn.text]


def test_unknown_values_are_gaps_and_a_lone_value_is_a_dot() -> None:
    values = [1.0, 1.0, None, 2.0, None, None, 4.0, 3.0]
    [line] = paths(chart("x", [Line("x", values)], SPAN, COUNT).svg, "line")
    assert line.count("M") == 3
    assert re.search(r"M\d+ \d+h0M", line)
    assert len(points(line)) == 6


def test_the_line_is_where_the_values_are() -> None:
    values = [0.0, 4.0, 4.0, 2.0]
    [line] = paths(chart("x", [Line("x", values)], SPAN, COUNT).svg, "line")
    x, y = zip(*points(line), strict=True)
    assert (x[0], x[-1]) == (70, 632)
    top, bottom = min(y), max(y)
    assert y[0] == bottom and points(line)[1][1] == top
    assert y[-1] == bottom - round((bottom - top) * 2 / 4)


def test_nothing_known_is_no_drawing() -> None:
    drawn = chart("Lag", [Line("orders", [None] * 60)], SPAN, COUNT)
    assert (drawn.svg, drawn.known) == ("", False)
    assert drawn.text == "Nothing is known of this time yet."
    assert drawn.lines[0].now == "?"


def test_a_line_of_zeros_is_drawn_at_the_bottom() -> None:
    [line] = paths(chart("x", [Line("x", [0.0] * 10)], SPAN, PER_S).svg, "line")
    assert {y for _, y in points(line)} == {128}


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a\"b'&amp;", "\u202eabc\x07", "x" * 999]
)
def test_any_name_is_safe(name: str) -> None:
    svg = chart(name, [Line(name, HOUR)], SPAN, COUNT).svg
    root = ElementTree.fromstring(svg)
    assert {one.tag for one in root.iter()} == {"svg", "title", "desc", "path", "text"}
    assert "style=" not in svg and "\u202e" not in svg and "\x07" not in svg
    assert {*re.findall(r" (\w[\w-]*)=", svg)} == {"class", "viewBox", "role", "d", "x", "y"}
    assert len(svg) < 8 << 10


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_an_hour_is_small_whatever_it_looks_like(lines: int) -> None:
    jagged = [float((n * 7_919) % 1_000) for n in range(STEPS)]
    gaps: list[float | None] = [None if n % 3 == 0 else value for n, value in enumerate(jagged)]
    for values in (jagged, gaps):
        drawn = chart("x" * 80, [Line("y" * 80, values)] * lines, SPAN, BYTES_PER_S)
        assert len(drawn.svg.encode()) <= 8 << 10


@pytest.mark.parametrize(
    ("peak", "unit", "labels"),
    [
        (0.3, PER_S, ["0/s", "0.25/s", "0.5/s"]),
        (7, COUNT, ["0", "5", "10"]),
        (1_001, COUNT, ["0", "1\u202f000", "2\u202f000"]),
        (2**53 + 2, COUNT, ["0", "5\u202f000\u202f000\u202f000\u202f000\u202f000"]),
        (700, BYTES, ["0 B", "512 B", "1 KiB"]),
        (1_500, BYTES_PER_S, ["0 B/s", "1 KiB/s", "2 KiB/s"]),
        (0, BYTES, ["0 B"]),
    ],
)
def test_the_axis_has_units_for_people(peak: float, unit: Unit, labels: list[str]) -> None:
    svg = chart("x", [Line("x", [peak])], SPAN, unit).svg
    said = [
        one.text for one in ElementTree.fromstring(svg).iter("text") if one.attrib["class"] == "y"
    ]
    assert said[: len(labels)] == labels


def test_a_large_number_is_exact() -> None:
    assert chart("x", [Line("x", [2.0**53 + 2])], SPAN, COUNT).lines[0].now.replace(
        "\u202f", ""
    ) == str(2**53 + 2)


def test_times_below_are_quarters_of_hours() -> None:
    svg = chart("x", [Line("x", HOUR)], SPAN, COUNT).svg
    said = [
        one.text for one in ElementTree.fromstring(svg).iter("text") if one.attrib["class"] == "x"
    ]
    assert said == ["21:15", "21:30", "21:45", "22:00"]
