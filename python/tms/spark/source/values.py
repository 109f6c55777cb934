"""Values of options: how each kind is written, and the error when it is written otherwise."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX

_SHOWN_CHARS = 120
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"(\d{1,12}) ?(ms|s|min|m|h|d)?", re.ASCII)
COUNT_MAX = 2**63 - 1


def refuse(option: str, value: str, meant: str) -> Invalid:
    """The error of an option with a wrong value."""
    shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
    return Invalid(f"The option {option} takes {meant}; got {shown!r}.", field=option)


def as_flag(got: Mapping[str, str], option: str, default: bool) -> bool:
    """`true` or `false`."""
    text = got.get(option, str(default))
    if text.lower() not in ("true", "false"):
        raise refuse(option, text, "`true` or `false`")
    return text.lower() == "true"


def as_count(got: Mapping[str, str], option: str, default: int | None) -> int | None:
    """A whole number from 1 on."""
    text = got.get(option)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not 1 <= int(text) <= COUNT_MAX:
        raise refuse(option, text, "a whole number, at least 1")
    return int(text)


def as_millis(got: Mapping[str, str], option: str, default: str) -> int:
    """A duration in ms, from `30s`, `15m`, `1h`; a number alone is in ms."""
    text = got.get(option, default)
    match = _DELAY.fullmatch(text.lower())
    if match is None:
        raise refuse(option, text, "a duration like 500ms, 30s, 15m, 1h or 1d")
    return int(match[1]) * _UNIT_MS[match[2] or "ms"]


def as_time(got: Mapping[str, str], option: str) -> int:
    """A time in ms since 1970."""
    text = got[option]
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII) or int(text) > TIME_MS_MAX:
        raise refuse(option, text, "a time in ms since 1970-01-01T00:00Z")
    return int(text)


def as_whole(option: str, text: str, value: Any, least: int, most: int) -> int:
    """A whole number within the JSON `text`."""
    if type(value) is not int or not least <= value <= most:
        raise refuse(option, text, f"whole numbers from {least} on, unlike {value!r}")
    return value


def read_json(option: str, text: str, meant: str) -> dict[str, Any]:
    """A JSON object; a name that is in it twice is an error."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as exc:
        raise refuse(option, text, f"{meant} ({exc})") from exc
    if not isinstance(found, dict):
        raise refuse(option, text, meant)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is in it twice")
    return found
