"""The steps from the present tables to the wanted ones. Values only, no calls.

    install     jar → namespace → metadata → messages, payloads (with the coprocessor) → note, asked
    upgrade     jar → note (new, former) → messages, asked → payloads, asked
    take off    messages, asked → payloads, asked → note
    drop        messages → payloads → metadata → namespace

Invariants

* Made again at any point, a plan has the remaining steps; it is empty when none are left.
* A coprocessor that HBase's master refuses is refused at the first table that it is on, before the
  others have any rows.
* Tables of others are never touched; if they are in the way, there is no plan but an error.
* The note is the authority on the state before an upgrade: it is written before tables change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tms.errors import Conflict
from tms.store.hbase.admin import HBaseTable
from tms.store.hbase.deployment.tables import (
    DESIGNS,
    WATCHED,
    Tuning,
    coprocessor_path,
    differences,
    mended,
    with_coprocessor,
)
from tms.store.hbase.rows import METADATA, TABLES, split_rows

_OF_HBASE = ("default", "hbase")  # namespaces


class Build(msgspec.Struct, frozen=True):
    """A jar of the coprocessor in the region servers' directory."""

    version: str
    path: str
    sha256: str


class Installed(msgspec.Struct, frozen=True):
    """The note `!config/installed`."""

    tms: str  # version of the command
    installed_ms: int
    changed_ms: int
    coprocessor: Build | None = None
    former: Build | None = None  # the target of `upgrade --rollback`


@dataclass(frozen=True, slots=True)
class FoundTable:
    """An existing table."""

    table: HBaseTable
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class TablesState:
    """The present state of a namespace. `foreign` are its tables that are not TMS's."""

    namespace: str
    namespace_exists: bool = False
    tables: Mapping[str, FoundTable] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    note: Installed | None = None


class Step(msgspec.Struct, frozen=True):
    """A change, or a wait for one."""


class CreateNamespace(Step, frozen=True):
    """Create the namespace."""


class CreateTable(Step, frozen=True):
    """Create a table."""

    table: HBaseTable
    splits: tuple[bytes, ...] = ()


class ModifyTable(Step, frozen=True):
    """Change a table; its regions reopen."""

    table: HBaseTable
    changes: tuple[str, ...] = ()


class EnableTable(Step, frozen=True):
    """Enable a table."""

    name: str


class DropTable(Step, frozen=True):
    """Disable and delete a table."""

    name: str


class DropNamespace(Step, frozen=True):
    """Delete the namespace."""


class PutJar(Step, frozen=True):
    """Copy the jar to the region servers' directory, unless it is there."""

    build: Build


class Ask(Step, frozen=True):
    """Wait until every region of a table reports this build; without a build, no coprocessor."""

    name: str
    version: str | None


class Note(Step, frozen=True):
    """Store the note of the installed build."""

    note: Installed


def install(
    state: TablesState, build: Build | None, tuning: Tuning, regions: int, tms: str, now_ms: int
) -> list[Step]:
    """The steps that an installation still needs. Raises `Conflict`."""
    _refuse_foreign(state)
    _refuse_other_build(state, build)
    path = None if build is None else build.path
    steps: list[Step] = [] if build is None else [PutJar(build)]
    if not state.namespace_exists:
        steps.append(CreateNamespace())
    for name in (METADATA, *WATCHED):  # the tables that a coprocessor reads come before it
        watched = path if name in WATCHED else None
        steps += _table_steps(state, name, tuning, watched, regions)
    note = state.note or Installed(tms, now_ms, now_ms)
    former = note.former if note.former != build else None
    steps += _noted(state, replace_note(note, tms, build, former, now_ms))
    if build is not None:
        steps += [Ask(name, build.version) for name in WATCHED]
    return steps


def upgrade(state: TablesState, build: Build, tms: str, now_ms: int) -> list[Step]:
    """The steps from the present coprocessor to another one, a table at a time."""
    _require_tables(state)
    if all(coprocessor_path(state.tables[name].table) is None for name in WATCHED):
        raise Conflict(
            f"The tables in {state.namespace} have no coprocessor to upgrade.",
            next="`tms hbase install` puts one there",
        )
    return [PutJar(build), *_changed(state, build, _former(state, build), tms, now_ms)]


def roll_back(state: TablesState, tms: str, now_ms: int) -> tuple[Build, list[Step]]:
    """The steps to the coprocessor before the last upgrade; those that are left if one was
    interrupted."""
    _require_tables(state)
    note = state.note
    build = None if note is None else note.former
    if note is not None and build is None and note.coprocessor is not None:
        paths = {coprocessor_path(state.tables[name].table) for name in WATCHED}
        build = note.coprocessor if paths != {note.coprocessor.path} else None
    if build is None:
        raise Conflict(
            "No former coprocessor is noted, so there is nothing to roll back to.",
            next="`tms hbase upgrade --jar PATH` installs the one that you want",
        )
    return build, _changed(state, build, None, tms, now_ms)


def undo(
    state: TablesState, before: TablesState, build: Build, tms: str, now_ms: int
) -> list[Step]:
    """The steps back to the tables before this build, however far its upgrade came, in this run or
    in an interrupted one."""
    note = before.note
    if note is not None and note.coprocessor == build:
        paths = dict.fromkeys(WATCHED, None if note.former is None else note.former.path)
        note = replace_note(note, tms, note.former, None, now_ms)
    else:
        paths = {name: coprocessor_path(before.tables[name].table) for name in WATCHED}
    steps: list[Step] = []
    for name, path in paths.items():
        if path != coprocessor_path(state.tables[name].table):
            steps.append(_modified(state.tables[name].table, path))
            known = note.coprocessor if note is not None else None
            if path is None:
                steps.append(Ask(name, None))
            elif known is not None and known.path == path:
                steps.append(Ask(name, known.version))
    return steps + (_noted(state, note) if note is not None else [])


def take_off(state: TablesState, tms: str, now_ms: int) -> list[Step]:
    """The steps to the tables without the coprocessor."""
    steps: list[Step] = []
    for name in WATCHED:
        found = state.tables.get(name)
        if found is not None and coprocessor_path(found.table) is not None:
            steps += [_modified(found.table, None), Ask(name, None)]
    if METADATA in state.tables and state.note is not None:
        note = state.note
        former = note.coprocessor or note.former
        steps += _noted(state, replace_note(note, tms, None, former, now_ms))
    return steps


def drop(state: TablesState) -> list[Step]:
    """The steps to no table of TMS, and to no namespace unless others have tables there. Raises
    `Conflict`."""
    watched = [state.tables[name].table for name in WATCHED if name in state.tables]
    metadata = state.tables.get(METADATA)
    begun = not watched and metadata is not None and not metadata.enabled  # by an earlier run
    ours = state.note is not None or begun or any(map(coprocessor_path, watched))
    if state.tables and not ours:
        raise Conflict(
            f"It is not noted that `tms hbase install` made the tables in {state.namespace}.",
            next="`tms hbase install` notes it; tables of others go with `drop` in `hbase shell`",
        )
    steps: list[Step] = [DropTable(name) for name in TABLES if name in state.tables]
    if state.namespace_exists and not state.foreign and state.namespace not in _OF_HBASE:
        steps.append(DropNamespace())
    return steps


def words(step: Step, namespace: str) -> str:
    """A step, for people."""
    match step:
        case CreateNamespace():
            return f"create the namespace {namespace}"
        case CreateTable(table, splits):
            path = coprocessor_path(table)
            more = f", coprocessor {path}" if path else ""
            regions = f"{len(splits) + 1} regions" if splits else "one region"
            return f"create the table {namespace}:{table.name}, {regions}{more}"
        case ModifyTable(table, changes):
            return f"change the table {namespace}:{table.name}: {'; '.join(changes)}"
        case EnableTable(name):
            return f"enable the table {namespace}:{name}"
        case DropTable(name):
            return f"delete the table {namespace}:{name}"
        case DropNamespace():
            return f"delete the namespace {namespace}"
        case PutJar(build):
            return f"see that {build.path} is there"
        case Ask(name, version):
            answer = f"coprocessor {version}" if version else "no coprocessor"
            return f"ask every region of {namespace}:{name} for {answer}"
        case Note(note):
            path = note.coprocessor.path if note.coprocessor else "no coprocessor"
            return f"note what is installed: {path}"
    raise AssertionError(step)


def changes(steps: Sequence[Step]) -> list[Step]:
    """The steps that change anything in HBase."""
    return [step for step in steps if not isinstance(step, PutJar | Ask)]


def replace_note(
    note: Installed, tms: str, build: Build | None, former: Build | None, now_ms: int
) -> Installed:
    """The note with these builds; unchanged if it has them."""
    if (note.tms, note.coprocessor, note.former) == (tms, build, former):
        return note
    return Installed(tms, note.installed_ms, now_ms, build, former)


def _table_steps(
    state: TablesState, name: str, tuning: Tuning, path: str | None, regions: int
) -> list[Step]:
    found = state.tables.get(name)
    if found is None:
        wanted = DESIGNS[name]
        if name in WATCHED:
            durability = wanted.attributes
            wanted = with_coprocessor(mended(wanted, tuning), path)
            wanted = replace(wanted, attributes={**durability, **wanted.attributes})
        return [CreateTable(wanted, tuple(split_rows(regions)) if name in WATCHED else ())]
    wanted = mended(found.table, tuning)
    if path is not None:
        wanted = with_coprocessor(wanted, path)
    changed = differences(found.table, wanted)
    steps: list[Step] = [ModifyTable(wanted, tuple(changed))] if changed else []
    return steps if found.enabled else [*steps, EnableTable(name)]


def _changed(
    state: TablesState, build: Build, former: Build | None, tms: str, now_ms: int
) -> list[Step]:
    note = state.note or Installed(tms, now_ms, now_ms)
    steps = _noted(state, replace_note(note, tms, build, former, now_ms))
    for name in WATCHED:
        if coprocessor_path(state.tables[name].table) != build.path:
            steps.append(_modified(state.tables[name].table, build.path))
        steps.append(Ask(name, build.version))
    return steps


def _modified(table: HBaseTable, path: str | None) -> ModifyTable:
    wanted = with_coprocessor(table, path)
    return ModifyTable(wanted, tuple(differences(table, wanted)))


def _noted(state: TablesState, note: Installed) -> list[Step]:
    return [] if note == state.note else [Note(note)]


def _former(state: TablesState, build: Build) -> Build | None:
    note = state.note
    if note is None or note.coprocessor is None:
        return None
    return note.former if note.coprocessor == build else note.coprocessor


def _refuse_foreign(state: TablesState) -> None:
    in_the_way = [name for name in TABLES if name in state.foreign]
    if in_the_way or (state.foreign and not state.tables):
        raise Conflict(
            f"The namespace {state.namespace} has tables of something else: "
            f"{', '.join(state.foreign)}.",
            next=f"name another one: hbase://HOST:PORT/NAMESPACE instead of {state.namespace}",
        )


def _refuse_other_build(state: TablesState, build: Build | None) -> None:
    for name in WATCHED:
        found = state.tables.get(name)
        path = None if found is None else coprocessor_path(found.table)
        if path is not None and (build is None or path != build.path):
            raise Conflict(
                f"The table {state.namespace}:{name} has the coprocessor {path} already.",
                next="`tms hbase uninstall` takes it off"
                if build is None
                else "`tms hbase upgrade` goes from one coprocessor to another",
            )


def _require_tables(state: TablesState) -> None:
    missing = [name for name in TABLES if name not in state.tables]
    if missing:
        raise Conflict(
            f"The namespace {state.namespace} has no table {', '.join(missing)}.",
            next="`tms hbase install` makes it",
        )
