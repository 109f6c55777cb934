"""What the commands of queues take."""

from typing import Any

import click

from tms.errors import TMSError
from tms.model.transaction import check_group


class GroupType(click.ParamType[str]):
    """The name of a group."""

    name = "group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_group(value)
        except TMSError as error:
            self.fail(error.message, param, ctx)


GROUP = GroupType()
