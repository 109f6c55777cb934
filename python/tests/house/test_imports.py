"""The rules of imports, checked on the source text: a line in the wrong room fails `make check`.

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
_VALUES = {"errors", "runtime/decoding", "runtime/extras", "model", "block"}
_RUNTIME = {"runtime/background", "runtime/clock", "runtime/events"}
_TOPICS = _VALUES | _RUNTIME | {"runtime/options", "runtime/throttle", "store/base", "log"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "runtime/version": set(),
    "runtime/extras": {"errors"},
    "runtime/background": set(),
    "runtime/clock": set(),
    "runtime/decoding": set(),
    "runtime/disk": set(),
    "runtime/events": {"runtime/clock"},
    "runtime/histogram": set(),
    "runtime/throttle": {"errors", "runtime/clock"},
    "runtime/forks": {"errors"},
    "runtime/options": {"errors"},
    "runtime/retrying": {"errors"} | _RUNTIME,
    "runtime/tls": {"errors"},
    "runtime": set(),
    "model": {"runtime/decoding", "errors"},
    "serializers": {"runtime/decoding", "errors", "runtime/extras", "model"},
    "block": {"errors", "runtime/extras", "model"},
    "api": _VALUES,
    "api/instances": _VALUES | {"api"},
    "store/base": _VALUES,
    "store": _VALUES | {"runtime"},
    "store/backup": _VALUES | {"runtime/clock", "store/base", "runtime/disk"},
    "log": _VALUES | _RUNTIME | {"runtime/options", "store/base"},
    "access": _VALUES | {"runtime/clock", "runtime/events", "store/base"},
    # The port of other instances is declared once, with its paths; see `Peer`.
    "topics/owners": _VALUES | {"api/instances"},
    "topics/topics": _TOPICS | {"api/instances"},
    "topics": _TOPICS,
    "cluster": _VALUES | _RUNTIME | {"runtime", "api/instances", "store/base", "log", "topics"},
    "cluster/workers": _VALUES
    | _RUNTIME
    | {"store"},  # the store of a worker is a kind of LevelDB's
    "transactions": _VALUES | _RUNTIME | {"store/base", "topics", "log"},
    "groups": _VALUES | _RUNTIME | {"topics", "log", "transactions"},
    "queues": _VALUES | _RUNTIME | {"topics", "log", "transactions"},
    "delayed": _VALUES
    | _RUNTIME
    | {"runtime/histogram", "store/base", "topics", "log", "transactions"},
    "engine": _VALUES
    | {"runtime", "api/instances", "store/base", "store/backup", "log", "topics", "access"}
    | {"cluster"}
    | {"transactions", "groups", "queues", "delayed"},
    "engine/observer": _VALUES | {"runtime/clock", "store/base", "topics", "log"},
    "client": _VALUES | {"runtime", "api"},
    # The two composition roots of the Python API: they join client, engine and store.
    "root": _VALUES | {"runtime", "client", "cluster", "engine", "store", "topics"},
    "aio": _VALUES | {"runtime", "client", "engine", "store", "topics", "root"},
    "server": _VALUES
    | {"runtime", "access", "api", "cluster", "engine", "log", "topics", "transactions", "queues"},
    "compat": _VALUES
    | {"runtime", "access", "api", "cluster", "server", "engine", "log", "topics", "transactions"}
    | {"groups"},
    # Pages ask operations for everything: they know no engine.
    "console": _VALUES | {"runtime", "api", "server"},
    # The composition root of the service.
    "serve": _VALUES
    | {"runtime", "access", "api", "client", "cluster", "engine", "log", "topics", "store"}
    | {"server", "compat", "console"},
    "sql": _VALUES | {"runtime/clock", "client", "api"},
    "testing": _VALUES
    | {"runtime/clock", "client", "engine", "server", "compat", "console", "store"},
    "spark/rows": _VALUES,  # blocks to Arrow: the same for every way to read, no pyspark
    "spark/source": _VALUES | _RUNTIME | {"runtime/tls"},
    "spark/source/from_service": _VALUES
    | {"runtime/clock", "runtime/retrying", "runtime/tls", "api", "client"},
    "spark/source/from_hbase": _VALUES
    | {"runtime/clock", "runtime/tls", "log", "store", "engine/observer"},
    "spark/connector": _VALUES | {"runtime/clock", "log", "store", "engine/observer"},
    "spark/sink": _VALUES | {"runtime/clock", "runtime/retrying", "runtime/tls", "api", "client"},
    "spark/jobs": _VALUES | {"client"},  # an audit reads messages that no reader sees
    "spark": _VALUES | {"runtime/clock", "runtime/tls", "root"},
    "cli": _VALUES | {"runtime", "api", "client", "root", "store/backup"},
    "cli/checks": _VALUES | {"runtime", "store", "log", "topics", "delayed"},
    "cli/hbase": _VALUES | {"runtime", "root", "store"},  # tables and regions, below any service
    "cli/hbase_options": _VALUES | {"runtime", "root", "store"},
    "cli/spark": _VALUES | {"spark", "cli/checks"},
    "cli/parquet": _VALUES | {"spark/rows"},  # exported files have the rows that Spark sees
    **dict.fromkeys(
        [f"cli/spark_{job}" for job in ("archive", "audit", "report", "sql")],
        _VALUES | {"spark"},
    ),
    "cli/spark_running": _VALUES | {"runtime/background", "spark"},
}
# Single files that may know more than their room does, and why.
EXCEPTIONS: dict[str, set[str]] = {
    "client/backups.py": {"store/backup"},  # makes them
    "cli/serve.py": {"serve"},  # starts the service
    "cli/inspect.py": {"store"},  # opens a copy of a data directory
    "cli/backup.py": {"store"},  # opens a directory without an engine
    "cli/fsck.py": {"store"},  # opens a copy of a data directory
    "cli/upgrade.py": {"store"},  # works on a data directory that nobody has open
    "cli/checks/configuration.py": {"serve"},  # reads a configuration as the service would
    "cli/checks/spark.py": {"spark"},  # looks whether Spark and its connector would start
}
# Files that only compute: they take and return values. They import nothing but values and one
# another, and no module that reads, writes, waits or tells the time.
PURE = {
    "runtime/extras.py",
    "model/",
    "block/",
    "api/",
    "transactions/edits.py",
    "transactions/images.py",
    "transactions/in_progress.py",
    "transactions/pruning.py",
    "transactions/state.py",
    "transactions/state_snapshot.py",
    "transactions/transactional_state.py",
    "access/grants.py",
    "access/jwks.py",
    "access/jwt.py",
    "access/scram.py",
    "access/quotas.py",
    "access/tokens.py",
    "cluster/placement.py",
    "groups/assignment.py",
    "groups/classic.py",
    "groups/classic_calls.py",
    "groups/classic_groups.py",
    "groups/classic_member.py",
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
    "fcntl": {"store/leveldb/", "cli/contexts.py", "store/backup/writer.py"},
    "pyarrow": {"block/", "model/", "api/", "spark/", "cli/parquet.py"},
    "google_crc32c": {
        "block/",
        "model/",
        "store/leveldb/",
        "store/hbase/rows.py",
        "compat/kafka/records.py",
    },
    "aiokafka": {"compat/kafka/records_building.py"},
    "uvloop": {"server/", "serve/"},
    "structlog": {"server/"},
    "prometheus_client": {"server/"},
    "pydantic": {
        "server/front.py",
        "serve/",
        "compat/cdap/settings.py",
        "compat/kafka/settings.py",
        "compat/tephra/settings.py",
    },
    "zstandard": {"server/", "client/"},
    "joserfc": {"access/jwks.py"},
    "httptools": {"client/", "server/"},
    "tenacity": {"runtime/retrying.py"},
    "sqlalchemy": {"sql.py"},
    "pyspark": {
        "spark/source/",
        "spark/sink/writer.py",
        "spark/connector.py",
        "spark/sessions.py",
        "spark/jobs/",
    },
    "thriftpy2": {"compat/tephra/messages.py", "store/hbase/connection.py"},
    "kazoo": {"cluster/sessions.py", "cluster/zookeeper.py"},
    "click": {"cli/"},
    "yaml": {"cli/output.py"},
    "fastavro": {"serializers.py"},
    "pytest": {"testing/plugin.py"},
    "opentelemetry": {"client/telemetry/messaging.py", "server/tracing.py"},
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
    """The rules as arrows, by folder."""
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
                    _is_pure(target)
                    or target in ("runtime/decoding.py", "errors.py", "__init__.py")
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
    """Decoders are made in one place, by one thread at a time: `tms.runtime.decoding`."""
    astray = [
        f"{source.name}:{node.lineno} {ast.unparse(node)}"
        for source in sources().values()
        if source.name != "runtime/decoding.py"
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
        if source.name == "runtime/clock.py":
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
