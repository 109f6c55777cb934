"""The output of findings, and the exit code that follows from them."""

import os
import sys
from collections.abc import Iterable

import click
import msgspec

from tms.cli.checks.finding import Finding, Status
from tms.cli.output import Format, escape, write
from tms.cli.session import Session

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


def show(session: Session, found: Iterable[Finding], all_: bool) -> int:
    """Print the findings, with `all_` also the good ones. Returns 1 if one of them is a problem."""
    findings = list(found)
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    if session.format is Format.TABLE:
        write(
            "".join(
                _text(finding) for finding in findings if all_ or finding.status is not Status.OK
            )
        )
    else:
        document = msgspec.to_builtins(findings)
        session.show(document, document)
    session.say(
        f"{len(findings)} checks: {counts[Status.OK]} fine, {counts[Status.WARNING]} warnings, "
        f"{counts[Status.PROBLEM]} problems"
    )
    return 1 if counts[Status.PROBLEM] else 0


def _text(finding: Finding) -> str:
    status = f"{finding.status:<8}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        status = click.style(status, fg=_COLOURS[finding.status])
    text = f"{status} {escape(finding.check)}: {escape(finding.found)}\n"
    return text if finding.fix is None else f"{text}         fix: {escape(finding.fix)}\n"
