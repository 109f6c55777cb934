"""Templates to HTML, and how numbers, times and sizes are written for people.

* Every value is escaped unless a template itself is its author.
* Control and bidirectional characters of names and messages are shown as their code points: they
  could hide or turn what stands beside them.
* Jinja2 is loaded with the first page.
"""

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tms.console.cells import shown
from tms.errors import NotFound
from tms.runtime.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment

BASE = "base.html"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
TIME_MS_LAST = 253_402_300_799_999  # the last one that has four digits of a year


def visible(text: object) -> str:
    """Text whose hidden characters are written as `⟨U+202E⟩`."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))


def number(value: int | float | None) -> str:
    """A number with its thousands set apart; `?` if it is unknown."""
    if value is None:
        return "?"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else f"{value:,.3g}"


def counted(count: int, noun: str) -> str:
    """A number of things: `1 message`, `2 messages`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def size(value: int | None) -> str:
    """Bytes in the unit that suits them; `?` if they are unknown."""
    if value is None:
        return "?"
    unit = min((max(value, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{value} B" if unit == 0 else f"{value / (1 << 10 * unit):.3g} {_UNITS[unit]}"


def time(ms: int | None) -> str:
    """A time in UTC, to the millisecond; empty if there is none."""
    if not ms or not 0 < ms <= TIME_MS_LAST:
        return "" if not ms else f"{ms} ms"
    return (
        datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        + f".{ms % 1_000:03d}Z"
    )


def duration(ms: int | float | None) -> str:
    """A duration in its two largest units, such as `2 d 3 h`; `?` if it is unknown."""
    if ms is None:
        return "?"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = int(ms // 1_000)
    parts = []
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, unit_s)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def segment(text: object) -> str:
    """Text as a part of a path or a value of a query."""
    return quote(str(text), safe="")


@cache
def environment() -> "Environment":
    """The templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("tms", "console/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"number": number, "size": size, "time": time, "visible": visible}
    made.filters |= {"counted": counted, "segment": segment, "duration": duration, "cell": shown}
    made.filters["quoted"] = shlex.quote
    made.globals |= {"version": VERSION, "file": file_address}
    for name in ("ui", "hour"):
        made.globals[name] = made.get_template(f"{name}.html").module
    return made


def render(template: str, values: Mapping[str, Any]) -> bytes:
    """The HTML of a page."""
    return environment().get_template(template).render(values).encode()


def render_block(template: str, block: str, values: Mapping[str, Any]) -> str:
    """The HTML of one block that a page has besides those of every page. Raises `NotFound`."""
    found = environment().get_template(template)
    if block not in found.blocks.keys() - environment().get_template(BASE).blocks.keys():
        raise NotFound(f"The page has no part {block!r:.60}.")
    return "".join(found.blocks[block](found.new_context(dict(values))))


@cache
def file_address(name: str) -> str:
    """The address of a file that pages refer to; it changes with the file."""
    return f"/console/static/{name}?{sha256(static(name) or b'').hexdigest()[:12]}"


@cache
def static(name: str) -> bytes | None:
    """A file that pages refer to; None if there is none of this name."""
    if name not in STATIC:
        return None
    return files("tms").joinpath("console", "static", name).read_bytes()


STATIC = {
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
}
