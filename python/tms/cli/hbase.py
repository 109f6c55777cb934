"""`tms hbase …`: install, status, upgrade, uninstall and cleanup of TMS in an HBase."""

import shutil
import subprocess
from typing import Annotated, Literal

import click
import msgspec

from tms.cli import hbase_options as options
from tms.cli.output import Format, escape, write
from tms.cli.parameters import RETENTION, DryRunOption, YesOption, session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.errors import ConfigError, StorageUnavailable, TMSError
from tms.model.topic import parse_retention
from tms.runtime.version import VERSION
from tms.store.hbase.coprocessor import bounds
from tms.store.hbase.deployment import health, plan
from tms.store.hbase.deployment import jar_places as places
from tms.store.hbase.deployment.deploy import Deployment, RegionAnswer, regions_of
from tms.store.hbase.deployment.tables import (
    REGIONS,
    REGIONS_MAX,
    WATCHED,
    Tuning,
    coprocessor_path,
)
from tms.store.hbase.rows import TABLES

SHELL_S = 600.0
_VERBS = ("flush", "major_compact")


@click.group("hbase", cls=CommandGroup)
def command() -> None:
    """Put TMS into an HBase, look after it, take it out.

    \b
      tms hbase install --store hbase://127.0.0.1:9090 --jar-directory hdfs://namenode:8020/tms
      tms hbase status --store hbase://127.0.0.1:9090
    """


@session_command("install", command)
def install(
    session: Session,
    jars: options.JarOptions,
    store: options.HBaseOption = None,
    no_coprocessor: Annotated[bool, "Tables only: nothing is cleaned."] = False,
    regions: Annotated[
        int, click.IntRange(1, REGIONS_MAX), f"Regions of a new table of messages. [{REGIONS}]"
    ] = REGIONS,
    ttl: Annotated[
        str | None, RETENTION, "Drop rows of unknown topics after this time: 90d. [forever]"
    ] = None,
    isolation: Annotated[
        Literal["uncommitted", "committed"] | None,
        "The isolation of readers that ask for none. [uncommitted]",
    ] = None,
    refresh: Annotated[str | None, RETENTION, "How often metadata is read. [10s]"] = None,
    wait: options.WaitOption = options.WAIT,
    dry_run: DryRunOption = False,
) -> None:
    """Make namespace and tables, and put the coprocessor on them.

    Doing it again changes nothing; after an interruption it does what is left.
    """
    if no_coprocessor and jars.given:
        raise click.UsageError("--no-coprocessor needs neither --jar nor --jar-directory.")
    tuning = Tuning(_ms_text(ttl), isolation, _refresh_text(refresh))
    with options.deployment(session, store, wait) as deployment:
        state = deployment.state()
        put: places.Put = _nothing
        build = None
        if not no_coprocessor:
            build, put = options.wanted(deployment, state, jars)
        steps = plan.install(state, build, tuning, regions, VERSION, session.clock.now_ms())
        if not dry_run:
            deployment.carry_out(steps, put)
        done = "TMS is installed" + (", and every region answers" if build is not None else "")
        options.show(session, deployment, steps, dry_run, done, build)


@session_command("upgrade", command)
def upgrade(
    session: Session,
    jars: options.JarOptions,
    store: options.HBaseOption = None,
    rollback: Annotated[bool, "Go back to the coprocessor from before."] = False,
    wait: options.WaitOption = options.WAIT,
    dry_run: DryRunOption = False,
) -> None:
    """Go to another build of the coprocessor, a table at a time; each region reopens.

    When a region does not answer with it, everything goes back to the one before.
    """
    if rollback and jars.given:
        raise click.UsageError("--rollback goes to the jar that was there: no --jar then.")
    now_ms = session.clock.now_ms()
    with options.deployment(session, store, wait) as deployment:
        state = deployment.state()
        put: places.Put = _nothing
        if rollback:
            build, steps = plan.roll_back(state, VERSION, now_ms)
            _require_jar(build, jars.webhdfs)
        else:
            build, put = options.wanted(deployment, state, jars)
            steps = plan.upgrade(state, build, VERSION, now_ms)
        if not dry_run:
            _upgrade(session, deployment, state, build, steps, put)
        done = f"every region answers with the coprocessor {build.version}"
        options.show(session, deployment, steps, dry_run, done, build)


@session_command("uninstall", command)
def uninstall(
    session: Session,
    store: options.HBaseOption = None,
    drop_tables: Annotated[bool, "Delete the tables too, with all messages."] = False,
    wait: options.WaitOption = options.WAIT,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Take the coprocessor off the tables; with --drop-tables delete everything."""
    with options.deployment(session, store, wait) as deployment:
        state = deployment.state()
        if drop_tables:
            steps = plan.drop(state)
            what = f"All of TMS in {deployment.admin.place} will be deleted, with every message."
        else:
            steps = plan.take_off(state, VERSION, session.clock.now_ms())
            what = (
                f"The tables in {deployment.admin.place} will lose their coprocessor: nothing is "
                "cleaned any more, and other readers see every row."
            )
        if plan.changes(steps) and not dry_run:
            session.confirm(what, deployment.namespace, yes)
            deployment.carry_out(steps, _nothing)
        done = "TMS and its tables are gone" if drop_tables else "there is no coprocessor"
        options.show(session, deployment, steps, dry_run, done)


@session_command("status", command)
def status(
    session: Session, store: options.HBaseOption = None, webhdfs: options.WebHdfsOption = None
) -> int:
    """Tables, regions, the coprocessor in each, how far they are cleaned, what to do next.

    Ends with 1 if something is wrong.
    """
    with options.deployment(session, store) as deployment:
        seen = _observed(deployment, webhdfs)
        cluster = deployment.admin.cluster_id()
    findings = health.findings(seen)
    tables = [health.table_facts(seen, name) for name in TABLES]
    wrong = any(finding.severity is health.HealthSeverity.PROBLEM for finding in findings)
    note = seen.state.note
    document = {
        "store": session.store,
        "cluster": cluster,
        "tms": VERSION,
        "installed": None if note is None else msgspec.to_builtins(note),
        "tables": tables,
        "findings": msgspec.to_builtins(findings),
        "healthy": not wrong,
    }
    session.show(document, [_row(table) for table in tables])
    if session.format is Format.TABLE:
        for finding in findings:
            write(f"{finding.severity:<8} {escape(finding.where)}: {escape(finding.what)}\n")
            write(f"         next: {escape(finding.next)}\n")
    return 1 if wrong else 0


@session_command("cleanup", command)
def cleanup(
    session: Session, store: options.HBaseOption = None, dry_run: DryRunOption = False
) -> int:
    """Have HBase rewrite the tables now, without rows that no reader may see any more.

    The coprocessor does it. Tables without it need the command `hbase` on the path; without that,
    prints what to run where it is and ends with 1.
    """
    with options.deployment(session, store) as deployment:
        state = deployment.state()
        names = [name for name in WATCHED if name in state.tables]
        if not names:
            raise ConfigError(
                f"The namespace {state.namespace} has no tables of TMS.",
                next="`tms hbase install` makes them",
            )
        left = names if dry_run else [name for name in names if not _clean_up(deployment, name)]
    lines = [f"{verb} '{state.namespace}:{name}'" for verb in _VERBS for name in left]
    shell = shutil.which("hbase")
    started = not dry_run and (not left or shell is not None)
    if dry_run:
        session.say("dry run, would have this done:")
    elif started:
        if left:
            _run_shell(str(shell), lines)
        session.say("compacting; `tms hbase status` shows how far each table is cleaned")
    else:
        session.say("no coprocessor that can do it; run this where `hbase` is:")
    if lines and not started and session.format is Format.TABLE:
        write("hbase shell -n <<'END'\n" + "".join(f"{line}\n" for line in lines) + "END\n")
    tables = [f"{state.namespace}:{name}" for name in names]
    session.show_result({"tables": tables, "commands": lines, "started": started})
    return 0 if started or dry_run else 1


def _clean_up(deployment: Deployment, name: str) -> bool:
    """Have every region of a table flushed and compacted; False when one cannot do it by itself."""
    done = [deployment.admin.clean_up(region) for region in deployment.admin.regions(name)]
    return all(done)


def _upgrade(
    session: Session,
    deployment: Deployment,
    before: plan.TablesState,
    build: plan.Build,
    steps: list[plan.Step],
    put: places.Put,
) -> None:
    try:
        deployment.carry_out(steps, put)
    except TMSError as error:
        if not any(isinstance(step, plan.ModifyTable) for step in steps):
            raise
        session.say(f"{error.message} Going back.")
        try:
            now_ms = session.clock.now_ms()
            back = plan.undo(deployment.state(), before, build, VERSION, now_ms)
            deployment.carry_out(back, _nothing)
        except TMSError as second:
            raise StorageUnavailable(
                f"{error.message} Going back failed too: {second.message}",
                next="`tms hbase status` shows how it stands; `tms hbase upgrade --rollback` goes "
                "on going back",
            ) from error
        raise type(error)(
            f"{error.message} The tables have the coprocessor again that they had before.",
            **error.details,
        ) from error


def _observed(deployment: Deployment, webhdfs: str | None) -> health.Observed:
    """Everything that status looks at."""
    state = deployment.state()
    usable = [name for name, table in state.tables.items() if table.enabled]
    answers = regions_of(deployment, usable)
    for name in set(usable) - set(WATCHED):
        answers[name] = [RegionAnswer(region) for region in deployment.admin.regions(name)]
    notes = deployment.admin.region_notes() if state.note is not None else {}
    gone = {}
    for name in WATCHED:
        path = coprocessor_path(state.tables[name].table) if name in state.tables else None
        if path is not None and _is_gone(deployment, path, webhdfs):
            gone[name] = path
    return health.Observed(state, answers, bounds(notes), gone, VERSION)


def _is_gone(deployment: Deployment, path: str, webhdfs: str | None) -> bool:
    """True if the jar of a table surely does not exist; false if this machine cannot tell."""
    try:
        place, name = places.place_of(path, webhdfs)
        deployment.require_visible(place, shared=False)
        return place.content(name) is None
    except TMSError:
        return False


def _require_jar(build: plan.Build, webhdfs: str | None) -> None:
    """Refuse to go back to a jar that is not there any more. Raises `ConfigError`."""
    import hashlib

    place, name = places.place_of(build.path, webhdfs)
    content = place.content(name)
    if content is None or hashlib.sha256(content).hexdigest() != build.sha256:
        state = "is gone" if content is None else "holds other bytes than when it was installed"
        raise ConfigError(
            f"The former jar {build.path} {state}.",
            next="put it back, or install another one with `tms hbase upgrade --jar PATH`",
        )


def _run_shell(shell: str, lines: list[str]) -> None:
    try:
        ended = subprocess.run(
            [shell, "shell", "-n"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=SHELL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise StorageUnavailable(f"`hbase shell -n` failed: {exc}.") from exc
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise StorageUnavailable(
            f"`hbase shell -n` ended with {ended.returncode}: {said[-1] if said else 'no word'}",
            next="run `tms hbase cleanup --dry-run`, then the printed lines by hand",
        )


def _row(facts: dict[str, object]) -> dict[str, object]:
    """A table of HBase as a row of the table that people see."""
    servers, verdicts = facts["servers"], facts["coprocessor"]
    assert isinstance(servers, dict) and isinstance(verdicts, dict)
    cleaned = facts["cleaned_before_ms"]
    return {
        **{name: facts[name] for name in ("table", "enabled", "regions")},
        "servers": len(servers),
        "coprocessor": ", ".join(f"{name} ({count})" for name, count in verdicts.items()) or None,
        **{name: facts[name] for name in ("metadata_age_ms", "image_age_ms")},
        "cleaned_before": time_text(cleaned) if isinstance(cleaned, int) else None,
    }


def _ms_text(duration: str | None) -> str | None:
    """A duration as an attribute holds it; empty for none."""
    if duration is None:
        return None
    ms = parse_retention(duration)
    return "" if ms is None else str(ms)


def _refresh_text(duration: str | None) -> str | None:
    text = _ms_text(duration)
    if text == "":
        raise click.UsageError("--refresh is a time, such as 10s.")
    return text


def _nothing() -> bool:
    return False
