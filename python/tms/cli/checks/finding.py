"""The result of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # works, but slower or riskier than it could
    PROBLEM = "problem"  # does not work, or loses data


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and how to mend it."""

    check: str
    status: Status
    found: str
    fix: str | None = None


def ok(check: str, found: str) -> Finding:
    """A finding with nothing to mend."""
    return Finding(check, Status.OK, found)


def warning(check: str, found: str, fix: str) -> Finding:
    """A finding that works, and would work better after `fix`."""
    return Finding(check, Status.WARNING, found, fix)


def problem(check: str, found: str, fix: str) -> Finding:
    """A finding that does not work, or not safely, until `fix` is done."""
    return Finding(check, Status.PROBLEM, found, fix)
