"""The outcome of a check."""

from dataclasses import dataclass
from enum import StrEnum

from tms.doctor.advice import ADVICE


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # works, but slower or riskier than it could
    PROBLEM = "problem"  # does not work, or loses data


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, and how to mend it."""

    check: str
    status: Status
    found: str
    fix: str | None = None


def ok(check: str, found: str) -> Finding:
    """Nothing to mend."""
    return Finding(check, Status.OK, found)


def warning(check: str, found: str, fix: str | None = None) -> Finding:
    """It works, but `fix`, or else the advice on this check, would make it better."""
    return Finding(check, Status.WARNING, found, fix or ADVICE[check])


def problem(check: str, found: str, fix: str | None = None) -> Finding:
    """It does not work, or not safely, until `fix`, or else the advice on this check, is done."""
    return Finding(check, Status.PROBLEM, found, fix or ADVICE[check])
