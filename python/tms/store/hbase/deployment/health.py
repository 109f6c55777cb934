"""The findings about a deployment, and advice. Values only: no calls.

A problem makes `tms hbase status` fail; a warning may be what the operator wants.

Invariants

* A region counts as cleaned up to the bound that its coprocessor noted; a table up to the lowest
  bound of its regions, and not at all while one has no note.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tms.store.hbase.admin import TTL
from tms.store.hbase.coprocessor import AGE_MS_MAX, verdict
from tms.store.hbase.deployment.deploy import RegionAnswer
from tms.store.hbase.deployment.plan import TablesState
from tms.store.hbase.deployment.tables import (
    ENABLED,
    ISOLATION,
    REFRESH,
    RELIED_ON,
    WATCHED,
    coprocessor_path,
)
from tms.store.hbase.rows import TABLES

_INSTALL = "`tms hbase install` mends it"
_REFRESH = (
    "a region that has just opened needs some seconds; else its server's log says "
    "tms_refresh_failed"
)
_SERVE = "committed readers wait for it: see whether `tms serve --store` runs"


class HealthSeverity(StrEnum):
    """The severity of a finding."""

    PROBLEM = "problem"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A fault of a deployment, and advice."""

    severity: HealthSeverity
    where: str
    what: str
    next: str


@dataclass(frozen=True, slots=True)
class Observed:
    """A deployment: answers by table, bounds by `TABLE/ENCODED`, tables whose jar is gone."""

    state: TablesState
    answers: Mapping[str, Sequence[RegionAnswer]]
    bounds: Mapping[str, int]
    jars_gone: Mapping[str, str]
    tms: str


def region_verdict(answer: RegionAnswer, version: str) -> str:
    """`unreachable`, or the verdict on its coprocessor's answer."""
    return "unreachable" if answer.error is not None else verdict(answer.probe, version)


def findings(seen: Observed) -> list[HealthFinding]:
    """All findings, the worst first."""
    state = seen.state
    found = []
    if missing := [name for name in TABLES if name not in state.tables]:
        what = f"there is no table {', '.join(missing)}"
        found.append(_problem(state.namespace, what, "`tms hbase install` makes it"))
    for name, table in state.tables.items():
        where = f"{state.namespace}:{name}"
        if not table.enabled:
            found.append(_problem(where, "it is disabled", _INSTALL))
        family = table.table.family_attributes
        wrong = [
            f"{key} = {family[key]}"
            for key, relied_on in RELIED_ON.items()
            if key in family and family[key].upper() != relied_on
        ]
        if wrong:
            what = f"TMS relies on other settings than {', '.join(wrong)}"
            found.append(_problem(where, what, _INSTALL))
        if name in WATCHED:
            found += _of_coprocessor(seen, name)
    found += _of_note(seen)
    return sorted(dict.fromkeys(found), key=lambda one: one.severity is not HealthSeverity.PROBLEM)


def table_facts(seen: Observed, name: str) -> dict[str, object]:
    """The facts about one table, as status shows them."""
    found = seen.state.tables.get(name)
    answers = list(seen.answers.get(name, ()))
    servers = Counter(one.region.server for one in answers)
    expected = _expected(seen) or seen.tms
    verdicts = Counter(region_verdict(one, expected) for one in answers) if name in WATCHED else {}
    ages = [one.probe for one in answers if one.probe is not None]
    cleaned = _cleaned(seen, name)
    return {
        "table": name,
        "exists": found is not None,
        "enabled": found is not None and found.enabled,
        "regions": len(answers),
        "servers": dict(sorted(servers.items())),
        "jar": None if found is None else coprocessor_path(found.table),
        "coprocessor": dict(sorted(verdicts.items())),
        "metadata_age_ms": _oldest([one.metadata_age_ms for one in ages]),
        "image_age_ms": _oldest([one.image_age_ms for one in ages]),
        "cleaned_before_ms": min(cleaned) if cleaned and len(cleaned) == len(answers) else None,
        "regions_cleaned": len(cleaned),
        "attributes": {
            key: value
            for key, value in (found.table.attributes if found is not None else {}).items()
            if key in (TTL, ISOLATION, REFRESH, ENABLED)
        },
    }


def _of_coprocessor(seen: Observed, name: str) -> list[HealthFinding]:
    """The findings about a table's coprocessor."""
    where = f"{seen.state.namespace}:{name}"
    expected = _expected(seen)
    answers = seen.answers.get(name, ())
    if expected is None and all(one.probe is None for one in answers):
        return []  # reported once, for all tables
    expected = expected or seen.tms
    found = []
    if name in seen.jars_gone:
        what = f"{seen.jars_gone[name]} is gone: region servers that start again stop themselves"
        found.append(_problem(where, what, "`tms hbase install` with the same jar puts it back"))
    verdicts = Counter(region_verdict(one, expected) for one in answers)
    for said, count in sorted(verdicts.items()):
        regions = f"{count} of {len(answers)} regions"
        if said == "off":
            what = f"the coprocessor is switched off in {regions}: {ENABLED} is false"
            unset = f"alter '{where}', METHOD => 'table_att_unset', NAME => '{ENABLED}'"
            found.append(_problem(where, what, f"in `hbase shell`: {unset}"))
        elif said == "unreachable":
            error = next(one.error for one in answers if one.error is not None)
            what = f"{regions} do not answer: {error}"
            found.append(_problem(where, what, "see whether HBase serves them"))
        elif said == "missing":
            what = f"{regions} have no coprocessor: nothing is cleaned there, readers see all"
            found.append(_problem(where, what, _INSTALL))
        elif said != expected:
            what = f"{regions} run the coprocessor {said}"
            found.append(_problem(where, what, "`tms hbase upgrade` mends it"))
    return found + _of_ages(seen, name)


def _of_ages(seen: Observed, name: str) -> list[HealthFinding]:
    probes = [one.probe for one in seen.answers.get(name, ()) if one.probe is not None]
    what = ""
    oldest = _oldest([one.metadata_age_ms for one in probes])
    if never := sum(one.metadata_age_ms is None for one in probes):
        what = f"{never} of {len(probes)} regions have not read the metadata yet"
    elif oldest is not None and oldest > AGE_MS_MAX:
        what = f"the metadata was read {oldest // 1000:,} s ago"
    found = [_problem(f"{seen.state.namespace}:{name}", what, _REFRESH)] if what else []
    image = _oldest([one.image_age_ms for one in probes])
    if probes and image is None:
        found.append(_warning(seen, "no service has written its transactions yet", _SERVE))
    elif image is not None and image > AGE_MS_MAX:
        what = f"the newest state of transactions is {image // 60_000:,} minutes old"
        found.append(_warning(seen, what, _SERVE))
    return found


def _of_note(seen: Observed) -> list[HealthFinding]:
    state = seen.state
    if any(name not in state.tables for name in TABLES):
        return []
    where = state.namespace
    if state.note is None:
        what = "there is no note of the installation"
        return [_problem(where, what, "`tms hbase install` notes it")]
    build = state.note.coprocessor
    paths = {coprocessor_path(state.tables[name].table) for name in WATCHED}
    if build is None and paths == {None}:
        what = "there is no coprocessor: nothing is cleaned, and other readers see every row"
        return [_warning(seen, what, "`tms hbase install` puts one there")]
    found = []
    if paths != {build.path if build is not None else None}:
        what = "the tables do not name the jar that is noted; something was interrupted"
        next_step = "run the command again that was, or `tms hbase upgrade`"
        found.append(_problem(where, what, next_step))
    if build is not None and build.version != seen.tms:
        what = f"the coprocessor {build.version} is installed, and this is TMS {seen.tms}"
        found.append(_warning(seen, what, "`tms hbase upgrade` when you like"))
    return found


def _problem(where: str, what: str, next: str) -> HealthFinding:
    return HealthFinding(HealthSeverity.PROBLEM, where, what, next)


def _warning(seen: Observed, what: str, next: str) -> HealthFinding:
    """A finding about the whole namespace."""
    return HealthFinding(HealthSeverity.WARNING, seen.state.namespace, what, next)


def _expected(seen: Observed) -> str | None:
    """The version that every region should run."""
    note = seen.state.note
    return None if note is None or note.coprocessor is None else note.coprocessor.version


def _cleaned(seen: Observed, name: str) -> list[int]:
    regions = (one.region.encoded for one in seen.answers.get(name, ()))
    notes = (seen.bounds.get(f"{name}/{encoded}") for encoded in regions)
    return [bound for bound in notes if bound is not None]


def _oldest(ages: Sequence[int | None]) -> int | None:
    return max((age for age in ages if age is not None), default=None)
