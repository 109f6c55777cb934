"""`tms log level`: how much a running service logs."""

from typing import Annotated

import click
import msgspec

from tms.cli.declaring import ARGUMENT
from tms.cli.output import Row, columns
from tms.cli.parameters import SECONDS, session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.model.log_level import DEFAULT_LEVEL, LEVELS, LOGGER


@click.group("log", cls=CommandGroup)
def command() -> None:
    """Show and set how much a running service logs."""


@session_command("level", command)
def level(
    session: Session,
    level: Annotated[str | None, ARGUMENT, click.Choice([*LEVELS, DEFAULT_LEVEL])] = None,
    logger: Annotated[str, "tms, or a logger below it [tms]."] = LOGGER,
    for_s: Annotated[
        float | None, "--for", SECONDS, "For this time, such as 10m [until a restart]."
    ] = None,
    everywhere: Annotated[bool, "At all instances of the cluster."] = False,
) -> None:
    """Set the LEVEL of a logger of the instance that answers; without one, show the levels.

    \b
      tms log level
      tms log level debug --for 10m
      tms log level debug --logger tms.queues.queue
      tms log level default
    """
    if level is None and (for_s is not None or everywhere or logger != LOGGER):
        raise click.UsageError("--logger, --for and --everywhere go with a LEVEL to set.")
    port = session.transport().log
    levels = port.levels() if level is None else port.set_level(level, logger, for_s, everywhere)
    rows: list[Row] = [
        {
            **columns(one, "instance", "logger", "level"),
            "default": one.default or "-",
            "until": "-" if one.until_ms is None else time_text(one.until_ms),
        }
        for one in levels
    ]
    session.show(msgspec.to_builtins(levels), rows)
