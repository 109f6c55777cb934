"""The command `tms doctor`: runs the checks, prints findings with their fixes, and ends with 1 if
one is a problem."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from tms.cli.doctor.finding import Finding, Status
from tms.cli.doctor.machine import Machine
from tms.cli.output import Format, escape, write
from tms.cli.session import Session, Shared

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


@click.command("doctor", cls=Shared)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration file of the service to check too.",
)
@click.option("--all", "all_", is_flag=True, help="Show also what is fine.")
@click.pass_obj
def command(session: Session, config: Path | None, all_: bool) -> int:
    """Check this machine, the configuration, the data directory and the service.

    Changes nothing. Each finding comes with the way to mend it.
    """
    findings = list(examine(session, config, Machine()))
    counts = {status: sum(one.status is status for one in findings) for status in Status}
    if session.format is Format.TABLE:
        write("".join(_text(one) for one in findings if all_ or one.status is not Status.OK))
    else:
        document = msgspec.to_builtins(findings)
        session.show(document, document)
    session.say(
        f"{len(findings)} checks: {counts[Status.OK]} fine, {counts[Status.WARNING]} warnings, "
        f"{counts[Status.PROBLEM]} problems"
    )
    return 1 if counts[Status.PROBLEM] else 0


def examine(session: Session, config: Path | None, machine: Machine) -> Iterator[Finding]:
    """The findings of all checks that apply."""
    from tms.cli.doctor import configuration, directory, service
    from tms.cli.doctor import machine as this_machine

    yield from this_machine.check(machine)
    yield from configuration.check(config, machine)
    data = session.data or (Path(text) if (text := machine.environ.get("TMS_DATA")) else None)
    if data is not None:
        yield from directory.check(data, machine)
    if data is None or session.url is not None:
        meant = session.url is not None or "TMS_URL" in machine.environ
        yield from service.check(session.url_or_default(), meant, machine)


def _text(finding: Finding) -> str:
    status = f"{finding.status:<8}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        status = click.style(status, fg=_COLOURS[finding.status])
    text = f"{status} {escape(finding.check)}: {escape(finding.found)}\n"
    return text if finding.fix is None else f"{text}         fix: {escape(finding.fix)}\n"
