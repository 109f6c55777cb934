"""The command `tms doctor`: runs the checks, prints findings with their fixes, and ends with 1 if
one is a problem."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from tms.cli.checks.finding import Finding, problem
from tms.cli.checks.machine import Machine
from tms.cli.findings import show
from tms.cli.parameters import session_command
from tms.cli.session import Session
from tms.errors import ConfigError
from tms.runtime.extras import installed, needed


@session_command("doctor")
def command(
    session: Session,
    config: Annotated[
        Path | None, click.Path(path_type=Path), "Configuration file of the service to check too."
    ] = None,
    all_: Annotated[bool, "--all", "Show good findings too."] = False,
) -> int:
    """Check this machine, the configuration, the data directory and the service.

    Changes nothing. Each finding comes with the way to mend it.
    """
    return show(session, examine(session, config, Machine()), all_)


def examine(session: Session, config: Path | None, machine: Machine) -> Iterator[Finding]:
    """The findings of all checks that apply."""
    from tms.cli.checks import directory, service
    from tms.cli.checks import machine as this_machine

    yield from this_machine.check(machine)
    if config is not None or installed("pydantic"):
        with needed("A configuration of the service", "server"):
            from tms.cli.checks import configuration
        yield from configuration.check(config, machine)
    data = session.data or (Path(text) if (text := machine.environ.get("TMS_DATA")) else None)
    if data is not None:
        yield from directory.check(data, machine)
    if data is None or session.url is not None or session.context is not None:
        remote = session.remote()
        try:
            meant = remote.meant
        except ConfigError as error:
            yield problem("context", error.message, str(error.details.get("next", "")))
            return
        wanted = meant.named or meant.context is not None
        yield from service.check(meant.url or "", wanted, machine, remote.tls())
