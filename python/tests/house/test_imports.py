"""Who may know whom, checked on the source text: a line in the wrong room fails `make check`.

* Rooms import only what `MAY_IMPORT` grants; drivers are imported only in the files of `DRIVERS`.
* The pictures in CONTRIBUTING.md and docs/architecture.md draw these rules, no more and no less.
* Files have at most 600 lines, functions at most 50.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product

import pytest

from tests.house.source import PACKAGE, ROOT, Import, Source, module_file, sources

DATES = {"datetime", "datetime.datetime", "date", "datetime.date"}

PICTURES = [("CONTRIBUTING.md", " ← "), ("docs/architecture.md", " ◀─ ")]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 50

# Each room, and what it may import besides itself. Longest prefix wins; every file is in a room.
# Lower rooms come first: an import of a later room runs up, and rails.toml limits how many do.
_VALUES = {"decoding", "errors", "extras", "model", "block"}
_TOLD = {"clock", "events"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "clock": set(),
    "decoding": set(),
    "events": {"clock"},
    "forks": {"errors"},
    "options": {"errors"},
    "retrying": {"errors"} | _TOLD,
    "tls": {"errors"},
    "model": {"decoding", "errors"},
    "serializers": {"decoding", "errors", "extras", "model"},
    "block": {"errors", "extras", "model"},
    "api": _VALUES,
    "store/base": _VALUES,
    "store": _VALUES | {"clock", "forks", "retrying", "tls"},
    "journal": {"decoding", "errors", "model"},
    "log": _VALUES | _TOLD | {"options", "store/base", "journal"},
    "access": _VALUES | {"clock", "store/base"},
    "topics": _VALUES | _TOLD | {"store/base", "journal", "log"},
    "cluster": _VALUES | _TOLD | {"options", "tls", "store/base", "log", "topics"},
    "cluster/workers": _VALUES | _TOLD | {"store"},  # the store of a worker is a kind of LevelDB's
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
    "telemetry": _VALUES | {"clock", "root"},  # its version stands in what it tells
    "client": _VALUES | _TOLD | {"forks", "retrying", "telemetry", "tls", "api"},
    # The two composition roots of the Python API: they join client, engine and store.
    "root": _VALUES | {"clock", "options", "tls", "client", "cluster", "engine", "store", "topics"},
    "aio": _VALUES | {"clock", "options", "tls", "client", "engine", "store", "topics", "root"},
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
    "doctor": _VALUES | {"clock", "tls"},
    "fsck": _VALUES | {"store", "log", "topics", "delayed"},
    "cli": _VALUES | {"clock", "tls", "api", "client", "root", "doctor", "fsck", "backup"},
    "cli/hbase": _VALUES | {"clock", "root", "store"},  # tables and regions, below any service
    "cli/hbase_options": _VALUES | {"clock", "root", "store"},
    "cli/spark": _VALUES | {"spark", "doctor"},
    "cli/parquet": _VALUES | {"spark/rows"},  # exported files have the rows that Spark sees
    **dict.fromkeys(
        [f"cli/spark_{job}" for job in ("archive", "audit", "report", "running", "sql")],
        _VALUES | {"spark"},
    ),
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


@cache
def room(file: str) -> str:
    """The row of `MAY_IMPORT` that a file is in."""
    if file == "__init__.py":
        return "root"
    name = file.removesuffix(".py").removesuffix("/__init__")
    fitting = [room for room in MAY_IMPORT if name == room or name.startswith(room + "/")]
    assert fitting, f"{file} is in no room of MAY_IMPORT; add a row with what it may import"
    return max(fitting, key=len)


def _imports(source: Source) -> Iterator[tuple[Import, str | None]]:
    """Each import of a file, and the file of the package that it imports."""
    for one in source.imports:
        yield one, module_file(one.dotted, sources())


def _covers(grant: str, file: str) -> bool:
    name = room(file)
    return name == grant or name.startswith(grant + "/")


def test_a_room_imports_only_the_rooms_below_it() -> None:
    astray = []
    for source in sources().values():
        home = room(source.name)
        own = home if home == "store/base" else _folder(home)
        granted = MAY_IMPORT[home] | EXCEPTIONS.get(source.name, set()) | {own}
        for (line, dotted, _), target in _imports(source):
            if target is None or (target == "__init__.py" and dotted in ("tms", "tms.__version__")):
                continue
            if not any(_covers(grant, target) for grant in granted):
                astray.append(f"{source.name}:{line} imports {dotted} ({room(target)})")
    assert not astray, "\n".join(astray)


def _drawn(page: str, arrow: str) -> set[tuple[str, str]]:
    """The arrows of a page's picture: (room, room that may import it)."""
    lines = (ROOT / page).read_text().splitlines()
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
    rooms = {_folder(file) for file in sources() if "/" in file}
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
    for source in sources().values():
        if not _is_pure(source.name):
            continue
        for (line, dotted, for_types), target in _imports(source):
            if target is None:
                impure = dotted.partition(".")[0] in IMPURE
            else:
                impure = not (
                    _is_pure(target) or target in ("decoding.py", "errors.py", "__init__.py")
                )
            if impure and not for_types:
                astray.append(f"{source.name}:{line} imports {dotted}")
    assert not astray, "\n".join(astray)


def test_every_pure_file_is_there() -> None:
    gone = [one for one in PURE if not (PACKAGE / one).exists()]
    assert not gone, gone


def test_a_driver_is_imported_only_in_its_files() -> None:
    astray = []
    for source in sources().values():
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


def _statuses(source: Source) -> Iterator[ast.keyword | ast.Compare]:
    """Nodes in which a number stands for an HTTP status."""
    for keyword in source.of(ast.keyword):
        if keyword.arg in ("status", "status_code") and _is_status(keyword.value):
            yield keyword
    for compare in source.of(ast.Compare):
        if _is_status(compare.comparators[0]) and "status" in ast.unparse(compare.left):
            yield compare


def _is_status(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Constant)
        and isinstance(value.value, int)
        and value.value in range(100, 600)
    )


def test_http_status_numbers_stand_only_in_the_routes() -> None:
    astray = [
        f"{source.name}:{number.lineno} {ast.unparse(number)}"
        for source in sources().values()
        if source.name != "api/routes.py"
        for number in _statuses(source)
    ]
    assert not astray, "\n".join(astray)


def test_decoders_of_msgspec_are_made_in_one_place() -> None:
    """Where one thread at a time makes them; see `tms.decoding`."""
    astray = [
        f"{source.name}:{node.lineno} {ast.unparse(node)}"
        for source in sources().values()
        if source.name != "decoding.py"
        for node in source.of(ast.Call)
        if re.fullmatch(r"msgspec\.(convert|(json|msgpack)\.Decoder)", ast.unparse(node.func))
        or any(keyword.arg == "type" and _decodes(node.func) for keyword in node.keywords)
    ]
    assert not astray, "\n".join(astray)


def _decodes(function: ast.expr) -> bool:
    return re.fullmatch(r"msgspec\.(json|msgpack)\.decode", ast.unparse(function)) is not None


def test_time_is_read_only_by_the_clock() -> None:
    astray = []
    for source in sources().values():
        if source.name == "clock.py":
            continue
        astray += [
            f"{source.name}:{node.lineno} {ast.unparse(node)}"
            for node in source.of(ast.Attribute)
            if node.attr in ("now", "utcnow", "today") and ast.unparse(node.value) in DATES
        ]
        astray += [
            f"{source.name}:{line} imports {dotted}"
            for line, dotted, _ in source.imports
            if dotted == "time" or dotted.startswith("time.")
        ]
    assert not astray, "\n".join(astray)


def test_files_and_functions_stay_short_and_say_what_they_own() -> None:
    astray = []
    for source in sources().values():
        if not source.docstring:
            astray.append(f"{source.name} does not say what it owns")
        lines = len(source.text.splitlines())
        if lines > FILE_LINES_MAX:
            astray.append(f"{source.name} has {lines} lines")
        for node in source.functions():
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                astray.append(f"{source.name}:{node.lineno} {node.name} has {lines} lines")
    assert not astray, "\n".join(astray)


def test_a_class_name_exists_once() -> None:
    """A reader who meets a name knows from the name alone which room is meant."""
    homes: dict[str, list[str]] = {}
    for source in sources().values():
        for node in source.of(ast.ClassDef):
            homes.setdefault(node.name, []).append(source.name)
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert not twice, twice
