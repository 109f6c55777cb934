"""Who may know whom, checked on the source text: a line in the wrong room fails `make check`.

* Rooms import only what `MAY_IMPORT` grants; drivers are imported only in the files of `DRIVERS`.
* Files have at most 600 lines, functions at most 50.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tms"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 50

# Each room, and what it may import besides itself. Longest prefix wins; every file is in a room.
_VALUES = {"errors", "model", "block"}
_TOLD = {"clock", "events"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "events": set(),
    "forks": {"errors"},
    "options": {"errors"},
    "model": {"errors"},
    "block": {"errors", "model"},
    "api": _VALUES,
    "store/base": _VALUES,
    "store": _VALUES | {"clock", "forks"},
    "journal": {"errors", "model"},
    "log": _VALUES | _TOLD | {"options", "store/base", "journal"},
    "cluster": _VALUES | _TOLD | {"options", "store/base"},
    "topics": _VALUES | _TOLD | {"store/base", "journal", "log"},
    "observer": _VALUES | {"clock", "store/base", "topics", "log"},
    "transactions": _VALUES | _TOLD | {"store/base", "journal", "topics", "log"},
    "groups": _VALUES | _TOLD | {"journal", "topics", "log", "transactions"},
    "queues": _VALUES | _TOLD | {"journal", "topics", "log", "transactions"},
    "delayed": _VALUES | _TOLD | {"store/base", "journal", "topics", "log", "transactions"},
    "compaction": _VALUES | _TOLD | {"options", "store/base", "topics", "log"},
    "tables": _VALUES | {"store/base", "transactions"},
    "engine": _VALUES
    | _TOLD
    | {"forks", "options", "store/base", "log", "topics", "cluster"}
    | {"transactions", "groups", "queues", "delayed", "compaction", "tables"},
    "server": _VALUES | _TOLD | {"api", "engine", "log", "topics", "transactions", "queues"},
    "server/config": _VALUES | {"engine", "log", "cluster"},
    "server/main": _VALUES | _TOLD | {"api", "engine", "log", "topics", "store", "cluster"},
    "compat": _VALUES | _TOLD | {"api", "server", "engine", "log", "topics", "transactions"},
    "client": _VALUES | {"clock", "forks", "api"},
    "doctor": _VALUES | {"clock"},
    "fsck": _VALUES | {"store", "log", "topics", "delayed"},
    "cli": _VALUES | {"clock", "api", "client", "root", "doctor", "fsck"},
    "cli/hbase": _VALUES | {"clock", "root", "store"},  # tables and regions, below any service
    "cli/hbase_options": _VALUES | {"clock", "root", "store"},
    "cli/spark": _VALUES | {"spark", "doctor"},
    **dict.fromkeys(
        [f"cli/spark_{job}" for job in ("archive", "audit", "report", "running", "sql")],
        _VALUES | {"spark"},
    ),
    "sql": _VALUES | {"clock", "client", "api"},
    "spark/rows": _VALUES,  # blocks to Arrow: the same for every way to read, no pyspark
    "spark/source": _VALUES | _TOLD,
    "spark/source/from_service": _VALUES | {"clock", "api", "client"},
    "spark/source/from_hbase": _VALUES | {"clock", "log", "store", "observer"},
    "spark/connector": _VALUES | {"clock", "log", "store", "observer"},
    "spark/sink": _VALUES | {"clock", "api", "client"},
    "spark/jobs": _VALUES | {"client"},  # an audit reads what no reader is shown
    "spark": _VALUES | {"clock", "root"},
    # The two composition roots of the Python API: they join client, engine and store.
    "root": _VALUES | {"clock", "options", "client", "engine", "store", "topics"},
    "aio": _VALUES | {"clock", "options", "client", "engine", "store", "topics", "root"},
}
# Single files that may know more than their room does, and why.
EXCEPTIONS: dict[str, set[str]] = {
    "server/app.py": {"compat"},  # joins the protocols of others with its own
    "server/main.py": {"compat"},  # listens for them
    "server/config.py": {"compat"},  # has their settings
    "cli/serve.py": {"server"},  # starts the service
    "cli/inspect.py": {"store"},  # opens a copy of a data directory
    "cli/fsck.py": {"store"},  # opens a copy of a data directory
    "doctor/directory.py": {"store"},  # reads the format of a data directory
    "doctor/configuration.py": {"server"},  # reads a configuration as the service would
    "doctor/spark.py": {"store", "spark"},  # looks whether Spark and its connector would start
}
# Files that only compute: what comes in is a value, and so is what goes out. They import nothing
# but values and one another, and no module that reads, writes, waits or tells the time.
PURE = {
    "model/",
    "block/",
    "api/",
    "transactions/edits.py",
    "transactions/images.py",
    "transactions/in_progress.py",
    "transactions/pruning.py",
    "transactions/state.py",
    "transactions/state_snapshot.py",
    "groups/assignment.py",
    "groups/membership.py",
    "groups/positions.py",
    "queues/deadlines.py",
    "queues/entries.py",
    "queues/key_order.py",
    "queues/partition.py",
    "queues/runs.py",
    "queues/snapshots.py",
    "queues/state.py",
}
IMPURE = {
    *("asyncio", "concurrent", "io", "os", "pathlib", "select", "socket", "subprocess"),
    *("tempfile", "threading", "time"),
}

# Third-party modules, and the only files that may import them. A name that ends with / is a room.
DRIVERS: dict[str, set[str]] = {
    "plyvel": {"store/leveldb/"},
    "fcntl": {"store/leveldb/"},
    "pyarrow": {"block/", "model/", "api/", "spark/"},
    "google_crc32c": {"block/", "model/", "store/leveldb/", "store/hbase/rows.py"},
    "uvicorn": {"server/"},
    "uvloop": {"server/"},
    "starlette": {"server/"},
    "structlog": {"server/"},
    "prometheus_client": {"server/"},
    "pydantic": {"server/"},
    "pydantic_settings": {"server/"},
    "zstandard": {"server/", "client/"},
    "httptools": {"client/", "server/"},
    "tenacity": {"client/", "store/hbase/thrift/pool.py"},
    "sqlalchemy": {"sql.py"},
    "pyspark": {
        "spark/source/",
        "spark/sink/writer.py",
        "spark/connector/",
        "spark/sessions.py",
        "spark/jobs/",
    },
    "matplotlib": {"spark/jobs/report_plot.py"},
    "thriftpy2": {"compat/tephra/messages.py", "store/hbase/thrift/connection.py"},
    "kazoo": {"compat/tephra/discovery.py"},
    "click": {"cli/"},
    "rich": {"cli/"},
}


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(), file)


@cache
def _imports(file: str, types: bool = True) -> list[tuple[int, str]]:
    """Line and dotted name of everything that the file imports, also within functions.

    Without `types` what is imported for type checkers only is left out.
    """
    return list(_find_imports(file, types))


def _find_imports(file: str, types: bool) -> Iterator[tuple[int, str]]:
    tree = _tree(file)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not types and id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; write the full name"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@cache
def _module_file(dotted: str) -> str | None:
    """The file of `tms` that a dotted name stands in; None for names outside of the package."""
    parts = dotted.split(".")
    if parts[0] != "tms":
        return None
    while len(parts) > 1:
        path = "/".join(parts[1:])
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if (PACKAGE / candidate).exists():
                return candidate
        parts.pop()
    return "__init__.py"


def _room(file: str) -> str:
    if file == "__init__.py":
        return "root"
    name = file.removesuffix(".py").removesuffix("/__init__")
    fitting = [room for room in MAY_IMPORT if name == room or name.startswith(room + "/")]
    assert fitting, f"{file} is in no room of MAY_IMPORT; say there what it may import"
    return max(fitting, key=len)


def _covers(grant: str, file: str) -> bool:
    room = _room(file)
    return room == grant or room.startswith(grant + "/")


@pytest.mark.parametrize("file", FILES)
def test_a_room_imports_only_the_rooms_below_it(file: str) -> None:
    room = _room(file)
    own = room.partition("/")[0]
    granted = MAY_IMPORT[room] | EXCEPTIONS.get(file, set()) | {own}
    if room == "store/base":
        granted = MAY_IMPORT[room] | {room}
    astray = []
    for line, dotted in _imports(file):
        target = _module_file(dotted)
        if target is None or (target == "__init__.py" and dotted in ("tms", "tms.__version__")):
            continue
        if not any(_covers(grant, target) for grant in granted):
            astray.append(f"{file}:{line} imports {dotted} ({_room(target)})")
    assert not astray, "\n".join(astray)


def _is_pure(file: str) -> bool:
    return any(file == one or (one[-1] == "/" and file.startswith(one)) for one in PURE)


@pytest.mark.parametrize("file", [file for file in FILES if _is_pure(file)])
def test_a_pure_file_imports_values_and_pure_files_only(file: str) -> None:
    astray = []
    for line, dotted in _imports(file, types=False):
        target = _module_file(dotted)
        if target is None:
            impure = dotted.partition(".")[0] in IMPURE
        else:
            impure = not (_is_pure(target) or target in ("errors.py", "__init__.py"))
        if impure:
            astray.append(f"{file}:{line} imports {dotted}")
    assert not astray, "\n".join(astray)


def test_every_pure_file_is_there() -> None:
    gone = [one for one in PURE if not (PACKAGE / one).exists()]
    assert not gone, gone


@pytest.mark.parametrize("file", FILES)
def test_a_driver_is_imported_only_in_its_files(file: str) -> None:
    astray = [
        f"{file}:{line} imports {dotted}; only {', '.join(sorted(allowed))} may"
        for line, dotted in _imports(file, types=False)
        if (allowed := DRIVERS.get(dotted.partition(".")[0])) is not None
        and not any(file == name or (name[-1] == "/" and file.startswith(name)) for name in allowed)
    ]
    assert not astray, "\n".join(astray)


@pytest.mark.parametrize("file", [file for file in FILES if file != "api/routes.py"])
def test_http_status_numbers_stand_only_in_the_routes(file: str) -> None:
    astray = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.keyword) and node.arg in ("status", "status_code"):
            value: ast.expr | None = node.value
        elif isinstance(node, ast.Compare) and "status" in ast.unparse(node.left):
            value = node.comparators[0]
        else:
            continue
        if isinstance(value, ast.Constant) and value.value in range(100, 600):
            astray.append(f"{file}:{node.lineno} {ast.unparse(node)}")
    assert not astray, "\n".join(astray)


@pytest.mark.parametrize("file", [file for file in FILES if file != "clock.py"])
def test_time_is_read_only_by_the_clock(file: str) -> None:
    astray = [f"{file}:{line} imports {name}" for line, name in _imports(file) if _is_clock(name)]
    astray += [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Attribute)
        and node.attr in ("now", "utcnow", "today")
        and ast.unparse(node.value) in ("datetime", "datetime.datetime", "date", "datetime.date")
    ]
    assert not astray, "\n".join(astray)


def _is_clock(dotted: str) -> bool:
    return dotted == "time" or dotted.startswith("time.")


@pytest.mark.parametrize("file", FILES)
def test_files_and_functions_stay_short_and_say_what_they_own(file: str) -> None:
    tree, text = _tree(file), (PACKAGE / file).read_text()
    assert ast.get_docstring(tree), f"{file} does not say what it owns"
    lines = len(text.splitlines())
    assert lines <= FILE_LINES_MAX, f"{file} has {lines} lines"
    long = [
        f"{file}:{node.lineno} {node.name} has {size} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_a_class_name_exists_once() -> None:
    """A reader who meets a name knows from the name alone which room is meant."""
    homes: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(file)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert not twice, twice
