"""Who may know whom, checked on the source text: a line in the wrong room fails `make check`.

* Rooms import only what `MAY_IMPORT` grants; drivers are imported only in the files of `DRIVERS`.
* The pictures in CONTRIBUTING.md and docs/architecture.md draw these rules, no more and no less.
* Files have at most 600 lines, functions at most 50.
"""

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tms"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
KNOWN_FILES = frozenset(FILES)
DATES = {"datetime", "datetime.datetime", "date", "datetime.date"}

PICTURES = [("CONTRIBUTING.md", " ← "), ("docs/architecture.md", " ◀─ ")]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 50

# Each room, and what it may import besides itself. Longest prefix wins; every file is in a room.
_VALUES = {"errors", "extras", "model", "block"}
_TOLD = {"clock", "events"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "clock": set(),
    "events": {"clock"},
    "forks": {"errors"},
    "serializers": {"errors", "extras", "model"},
    "options": {"errors"},
    "retrying": {"errors"} | _TOLD,
    "tls": {"errors"},
    "model": {"errors"},
    "block": {"errors", "extras", "model"},
    "api": _VALUES,
    "store/base": _VALUES,
    "store": _VALUES | {"clock", "forks", "retrying", "tls"},
    "journal": {"errors", "model"},
    "log": _VALUES | _TOLD | {"options", "store/base", "journal"},
    "access": _VALUES | {"clock", "store/base"},
    "cluster": _VALUES | _TOLD | {"options", "tls", "store/base", "log", "topics"},
    "cluster/workers": _VALUES | _TOLD | {"store"},  # the store of a worker is a kind of LevelDB's
    "topics": _VALUES | _TOLD | {"store/base", "journal", "log"},
    "observer": _VALUES | {"clock", "store/base", "topics", "log"},
    "transactions": _VALUES | _TOLD | {"store/base", "journal", "topics", "log"},
    "groups": _VALUES | _TOLD | {"journal", "topics", "log", "transactions"},
    "queues": _VALUES | _TOLD | {"journal", "topics", "log", "transactions"},
    "delayed": _VALUES | _TOLD | {"store/base", "journal", "topics", "log", "transactions"},
    "backup": _VALUES | {"clock", "store/base"},
    "compaction": _VALUES | _TOLD | {"options", "store/base", "topics", "log"},
    "tables": _VALUES | {"store/base", "transactions"},
    "shards": _VALUES | {"log", "topics", "transactions", "groups", "queues", "delayed"},
    "glance": _VALUES | {"topics", "groups", "queues"},
    "engine": _VALUES
    | _TOLD
    | {"forks", "options", "store/base", "log", "topics", "access", "cluster", "shards", "backup"}
    | {"transactions", "compaction", "tables", "glance"},
    "server": _VALUES
    | _TOLD
    | {"access", "tls", "api", "cluster", "engine", "log", "topics", "transactions", "queues"},
    "server/config": _VALUES | {"access", "tls", "engine", "log", "cluster"},
    "server/main": _VALUES
    | _TOLD
    | {"access", "tls", "api", "engine", "log", "topics", "store", "cluster"},
    "compat": _VALUES
    | _TOLD
    | {"api", "cluster", "server", "engine", "log", "topics", "transactions"},
    "telemetry": _VALUES | {"clock", "root"},  # its version stands in what it tells
    "client": _VALUES | _TOLD | {"forks", "retrying", "telemetry", "tls", "api"},
    "doctor": _VALUES | {"clock", "tls"},
    "fsck": _VALUES | {"store", "log", "topics", "delayed"},
    "cli": _VALUES | {"clock", "tls", "api", "client", "root", "doctor", "fsck", "backup"},
    "cli/hbase": _VALUES | {"clock", "root", "store"},  # tables and regions, below any service
    "cli/hbase_options": _VALUES | {"clock", "root", "store"},
    "cli/spark": _VALUES | {"spark", "doctor"},
    **dict.fromkeys(
        [f"cli/spark_{job}" for job in ("archive", "audit", "report", "running", "sql")],
        _VALUES | {"spark"},
    ),
    "sql": _VALUES | {"clock", "client", "api"},
    "testing": _VALUES | {"clock", "client", "engine", "server", "store"},
    "spark/rows": _VALUES,  # blocks to Arrow: the same for every way to read, no pyspark
    "spark/source": _VALUES | _TOLD | {"tls"},
    "spark/source/from_service": _VALUES | {"clock", "retrying", "tls", "api", "client"},
    "spark/source/from_hbase": _VALUES | {"clock", "tls", "log", "store", "observer"},
    "spark/connector": _VALUES | {"clock", "log", "store", "observer"},
    "spark/sink": _VALUES | {"clock", "retrying", "tls", "api", "client"},
    "spark/jobs": _VALUES | {"client"},  # an audit reads what no reader is shown
    "spark": _VALUES | {"clock", "tls", "root"},
    # The two composition roots of the Python API: they join client, engine and store.
    "root": _VALUES | {"clock", "options", "tls", "client", "cluster", "engine", "store", "topics"},
    "aio": _VALUES | {"clock", "options", "tls", "client", "engine", "store", "topics", "root"},
}
# Single files that may know more than their room does, and why.
EXCEPTIONS: dict[str, set[str]] = {
    "server/app.py": {"compat"},  # joins the protocols of others with its own
    "server/main.py": {"compat", "client"},  # listens for them; asks other instances
    "server/config.py": {"compat"},  # has their settings
    "server/workers.py": {"store"},  # is one of several processes
    "client/backups.py": {"backup", "compaction"},  # makes them, and their throttle
    "cli/main.py": {"events"},  # says where warnings go
    "cli/serve.py": {"server"},  # starts the service
    "cli/inspect.py": {"store"},  # opens a copy of a data directory
    "cli/backup.py": {"store", "compaction"},  # opens a directory without an engine; its throttle
    "cli/fsck.py": {"store"},  # opens a copy of a data directory
    "cli/upgrade.py": {"store"},  # works on a data directory that nobody has open
    "doctor/directory.py": {"store"},  # reads the format of a data directory
    "doctor/configuration.py": {"server"},  # reads a configuration as the service would
    "doctor/spark.py": {"store", "spark"},  # looks whether Spark and its connector would start
}
# Files that only compute: what comes in is a value, and so is what goes out. They import nothing
# but values and one another, and no module that reads, writes, waits or tells the time.
PURE = {
    "extras.py",
    "model/",
    "block/",
    "api/",
    "transactions/edits.py",
    "transactions/images.py",
    "transactions/in_progress.py",
    "transactions/pruning.py",
    "transactions/state.py",
    "transactions/state_snapshot.py",
    "access/grants.py",
    "access/jwks.py",
    "access/jwt.py",
    "access/quotas.py",
    "access/tokens.py",
    "cluster/placement.py",
    "groups/assignment.py",
    "groups/membership.py",
    "groups/positions.py",
    "queues/deadlines.py",
    "queues/entries.py",
    "queues/key_order.py",
    "queues/partition.py",
    "queues/runs.py",
    "queues/state.py",
}
IMPURE = {
    *("asyncio", "concurrent", "io", "os", "pathlib", "select", "socket", "subprocess"),
    *("tempfile", "threading", "time"),
}

# Third-party modules, and the only files that may import them. A name that ends with / is a room.
DRIVERS: dict[str, set[str]] = {
    "plyvel": {"store/leveldb/plyveldb.py"},
    "rocksdict": {"store/leveldb/rocksdb.py"},
    "fcntl": {"store/leveldb/", "cli/contexts.py", "backup/keeping.py"},
    "pyarrow": {"block/", "model/", "api/", "spark/", "cli/parquet.py"},
    "google_crc32c": {"block/", "model/", "store/leveldb/", "store/hbase/rows.py"},
    "uvloop": {"server/"},
    "structlog": {"server/"},
    "prometheus_client": {"server/"},
    "pydantic": {"server/"},
    "zstandard": {"server/", "client/"},
    "joserfc": {"access/jwks.py"},
    "httptools": {"client/", "server/"},
    "tenacity": {"retrying.py"},
    "sqlalchemy": {"sql.py"},
    "pyspark": {
        "spark/source/",
        "spark/sink/writer.py",
        "spark/connector.py",
        "spark/sessions.py",
        "spark/jobs/",
    },
    "matplotlib": {"spark/jobs/report_plot.py"},
    "thriftpy2": {"compat/tephra/messages.py", "store/hbase/thrift/connection.py"},
    "kazoo": {"cluster/sessions.py", "cluster/zookeeper.py"},
    "click": {"cli/"},
    "rich": {"cli/spark_running.py"},
    "yaml": {"cli/output.py"},
    "fastavro": {"serializers.py"},
    "pytest": {"testing/plugin.py"},
    "opentelemetry": {"telemetry/messaging.py", "server/tracing.py"},
    "pandas": {"client/frames.py", "spark/"},
    "polars": {"client/frames.py"},
}


class Import(NamedTuple):
    """One name that a file imports, also within a function."""

    line: int
    dotted: str
    for_types: bool  # below `if TYPE_CHECKING`


@dataclass(slots=True)
class Source:
    """What the rules below ask of one file, gathered in one walk over its tree."""

    name: str
    lines: int
    docstring: str | None
    imports: list[Import] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)  # where a number stands for an HTTP status
    clocks: list[str] = field(default_factory=list)  # where a date asks the machine for the time
    long_functions: list[str] = field(default_factory=list)


@cache
def _sources() -> list[Source]:
    return [_source(file) for file in FILES]


def _source(file: str) -> Source:
    text = (PACKAGE / file).read_text()
    tree = ast.parse(text, file)
    source = Source(file, len(text.splitlines()), ast.get_docstring(tree))
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, for_types = waiting.pop()
        _note(source, node, for_types)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types = True
        waiting += [(child, for_types) for child in ast.iter_child_nodes(node)]
    source.imports.sort()
    return source


def _note(source: Source, node: ast.AST, for_types: bool) -> None:
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
            source.imports += [Import(node.lineno, name, for_types) for name in names]
        case ast.ImportFrom():
            where = f"{source.name}:{node.lineno}"
            assert node.level == 0, f"{where}: relative import; write the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            source.imports += [Import(node.lineno, name, for_types) for name in names]
        case ast.ClassDef():
            source.classes.append(node.name)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                source.long_functions.append(f":{node.lineno} {node.name} has {size} lines")
        case ast.keyword(arg="status" | "status_code", value=ast.Constant(value=int(number))):
            if number in range(100, 600):
                source.statuses.append(f":{node.lineno} {ast.unparse(node)}")
        case ast.Compare(left=left, comparators=[ast.Constant(value=int(number)), *_]):
            if number in range(100, 600) and "status" in ast.unparse(left):
                source.statuses.append(f":{node.lineno} {ast.unparse(node)}")
        case ast.Attribute(attr="now" | "utcnow" | "today"):
            if ast.unparse(node.value) in DATES:
                source.clocks.append(f":{node.lineno} {ast.unparse(node)}")


@cache
def _module_file(dotted: str) -> str | None:
    """The file of `tms` that a dotted name stands in; None for names outside of the package."""
    parts = dotted.split(".")
    if parts[0] != "tms":
        return None
    while len(parts) > 1:
        path = "/".join(parts[1:])
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if candidate in KNOWN_FILES:
                return candidate
        parts.pop()
    return "__init__.py"


@cache
def _room(file: str) -> str:
    if file == "__init__.py":
        return "root"
    name = file.removesuffix(".py").removesuffix("/__init__")
    fitting = [room for room in MAY_IMPORT if name == room or name.startswith(room + "/")]
    assert fitting, f"{file} is in no room of MAY_IMPORT; say there what it may import"
    return max(fitting, key=len)


def arrows() -> dict[str, set[str]]:
    """The files that each file imports, also within functions, but not for types only."""
    return {
        source.name: {
            target
            for _, dotted, for_types in source.imports
            if not for_types and (target := _module_file(dotted)) not in (None, source.name)
        }
        for source in _sources()
    }


def _covers(grant: str, file: str) -> bool:
    room = _room(file)
    return room == grant or room.startswith(grant + "/")


def test_a_room_imports_only_the_rooms_below_it() -> None:
    astray = []
    for source in _sources():
        room = _room(source.name)
        own = room if room == "store/base" else room.partition("/")[0]
        granted = MAY_IMPORT[room] | EXCEPTIONS.get(source.name, set()) | {own}
        for line, dotted, _ in source.imports:
            target = _module_file(dotted)
            if target is None or (target == "__init__.py" and dotted in ("tms", "tms.__version__")):
                continue
            if not any(_covers(grant, target) for grant in granted):
                astray.append(f"{source.name}:{line} imports {dotted} ({_room(target)})")
    assert not astray, "\n".join(astray)


def _drawn(page: str, arrow: str) -> set[tuple[str, str]]:
    """The arrows of a page's picture: (room, room that may import it)."""
    lines = (PACKAGE.parents[1] / page).read_text().splitlines()
    arrows: set[tuple[str, str]] = set()
    for line in lines:
        if not line.startswith("    ") or arrow not in line:
            continue
        for chain in re.split(r"\s{3,}", line.strip()):
            steps = [step.strip().split(", ") for step in chain.split(arrow)]
            for known, knowing in pairwise(steps):
                arrows |= set(product(known, knowing))
    return arrows


def _granted(rules: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The same of the rules, by folder."""
    by_folder = {(_folder(known), _folder(name)) for name in rules for known in rules[name]}
    return {(known, knowing) for known, knowing in by_folder if known != knowing}


def _folder(room: str) -> str:
    return room.partition("/")[0]


@pytest.mark.parametrize(("page", "arrow"), PICTURES)
def test_a_picture_draws_no_arrow_that_the_rules_do_not_have(page: str, arrow: str) -> None:
    drawn = _drawn(page, arrow)
    wrong = drawn - _granted(MAY_IMPORT) - _granted(EXCEPTIONS)
    assert drawn and not wrong, f"{page} draws what test_imports.py does not allow: {wrong}"


def test_the_whole_picture_leads_to_whatever_a_room_may_import() -> None:
    drawn = _drawn(*PICTURES[1])
    rooms = {_folder(file) for file in FILES if "/" in file}
    assert rooms == {room for arrow in drawn for room in arrow} & rooms
    reached = drawn
    while True:
        further = {(a, d) for a, b in reached for c, d in drawn if b == c}
        if further <= reached:
            break
        reached |= further
    missing = {(a, b) for a, b in _granted(MAY_IMPORT) - reached if {a, b} <= rooms}
    assert not missing, f"docs/architecture.md does not lead from these to those: {missing}"


def _is_pure(file: str) -> bool:
    return any(file == one or (one[-1] == "/" and file.startswith(one)) for one in PURE)


def test_a_pure_file_imports_values_and_pure_files_only() -> None:
    astray = []
    for source in _sources():
        if not _is_pure(source.name):
            continue
        for line, dotted, for_types in source.imports:
            target = _module_file(dotted)
            if target is None:
                impure = dotted.partition(".")[0] in IMPURE
            else:
                impure = not (_is_pure(target) or target in ("errors.py", "__init__.py"))
            if impure and not for_types:
                astray.append(f"{source.name}:{line} imports {dotted}")
    assert not astray, "\n".join(astray)


def test_every_pure_file_is_there() -> None:
    gone = [one for one in PURE if not (PACKAGE / one).exists()]
    assert not gone, gone


def test_a_driver_is_imported_only_in_its_files() -> None:
    astray = []
    for source in _sources():
        for line, dotted, for_types in source.imports:
            allowed = DRIVERS.get(dotted.partition(".")[0])
            if allowed is None or for_types:
                continue
            if not any(
                source.name == name or (name[-1] == "/" and source.name.startswith(name))
                for name in allowed
            ):
                only = ", ".join(sorted(allowed))
                astray.append(f"{source.name}:{line} imports {dotted}; only {only} may")
    assert not astray, "\n".join(astray)


def test_http_status_numbers_stand_only_in_the_routes() -> None:
    astray = [
        source.name + status
        for source in _sources()
        if source.name != "api/routes.py"
        for status in source.statuses
    ]
    assert not astray, "\n".join(astray)


def test_time_is_read_only_by_the_clock() -> None:
    astray = []
    for source in _sources():
        if source.name == "clock.py":
            continue
        astray += [source.name + clock for clock in source.clocks]
        astray += [
            f"{source.name}:{line} imports {dotted}"
            for line, dotted, _ in source.imports
            if dotted == "time" or dotted.startswith("time.")
        ]
    assert not astray, "\n".join(astray)


def test_files_and_functions_stay_short_and_say_what_they_own() -> None:
    astray = []
    for source in _sources():
        if not source.docstring:
            astray.append(f"{source.name} does not say what it owns")
        if source.lines > FILE_LINES_MAX:
            astray.append(f"{source.name} has {source.lines} lines")
        astray += [source.name + function for function in source.long_functions]
    assert not astray, "\n".join(astray)


def test_a_class_name_exists_once() -> None:
    """A reader who meets a name knows from the name alone which room is meant."""
    homes: dict[str, list[str]] = {}
    for source in _sources():
        for name in source.classes:
            homes.setdefault(name, []).append(source.name)
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert not twice, twice
