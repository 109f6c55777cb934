"""What the commands of queues take."""

import re
from typing import Any

import click

from tms.errors import TMSError
from tms.model.transaction import check_group

_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class SecondsType(click.ParamType[float]):
    """`30`, `500ms`, `10m`: a number of seconds, or with a unit."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = _SECONDS.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no duration like 500ms, 30s, 10m or 12h.", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class GroupType(click.ParamType[str]):
    """The name of a group."""

    name = "group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_group(value)
        except TMSError as error:
            self.fail(error.message, param, ctx)


SECONDS, GROUP = SecondsType(), GroupType()
