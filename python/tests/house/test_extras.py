"""The distribution alone is a client of a service: its dependencies are enough for that, and a
missing extra is named.

The programs here run in a Python that sees TMS and its dependencies without extras, and nothing
else of this environment.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import tms
from tests.http_kit import serving

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES_MAX = 10
LIBRARIES = {  # of each extra: one that it brings and no other installation has
    "a service in a test": "zstandard",  # which uses no uvloop
    "arrow": "pyarrow",
    "embedded": "plyvel",
    "server": "uvloop",
    "kafka": "aiokafka",
    "cluster": "kazoo",
    "hbase": "thriftpy2",
    "sql": "sqlalchemy",
    "avro": "fastavro",
    "otel": "opentelemetry",
    "spark": "pyspark",
}

CLIENT = r"""
import asyncio, sys
import tms, tms.aio

url = sys.argv[1]
with tms.connect(url) as bus:
    bus.create_topic("flights", partitions=2)
    keys = [b"k%d" % (n % 7) if n % 3 else None for n in range(9_000)]
    sent = [(b"%d" % n, key, {"n": b"%d" % n}) for n, key in enumerate(keys)]
    with bus.producer("flights") as producer:
        for value, key, headers in sent:
            producer.send(value, key=key, headers=headers)
    read = [(m.value, m.key, m.headers) for m in bus.consumer("flights", stop_at_end=True)]
    assert sorted(map(repr, read)) == sorted(map(repr, sent)), len(read)
    assert len(list(bus.consumer("flights", where="key = k1", stop_at_end=True))) == sum(
        key == b"k1" for _, key, _ in sent)

    bus.create_topic("delays")
    with bus.transaction() as tx:
        tx.send("delays", b"late", key=b"UA")
    queue = bus.queue("delays", group="desks", lease_s=60)
    (message,) = queue.receive(10, wait_s=20)
    assert (message.value, message.key) == (b"late", b"UA")
    queue.ack(message)


async def main():
    async with tms.aio.connect(url) as bus:
        await bus.publish("delays", b"again")
        return [message.value async for message in bus.consumer("delays", stop_at_end=True)]


assert asyncio.run(main()) == [b"late", b"again"]

from tms.testing.memory import MemoryLog

log = MemoryLog()  # tests of a client need no extra either
log.bus.create_topic("flights")
log.bus.publish("flights", b"late")
log.close()
heavy = {"pyarrow", "pydantic", "plyvel", "kazoo", "thriftpy2"} & set(sys.modules)
assert not heavy, heavy
"""

SEVERAL = """  # commands one after the other, with a zero byte behind the output of each
import json
import sys
from tms.cli.main import run
for words in json.loads(sys.argv[1]):
    code = run(words)
    assert code == 0, (words, code)
    print(end="\\0", flush=True)
"""
MISSING = {
    "a data directory": ("import tms; tms.open('data')", "embedded"),
    "HBase": ("import tms; tms.open('hbase://127.0.0.1:9')", "hbase"),
    "ZooKeeper": ("import tms; tms.connect('zookeeper://127.0.0.1:9/tms')", "cluster"),
    "a SQL database": ("import tms.sql", "sql"),
    "Avro": ("from tms.serializers import Avro; Avro({})", "avro"),
    "compression": (
        "from tms.block import *; encode([b'x' * 999], compression=Compression.ZSTD)",
        "arrow",
    ),
    "columns": ("from tms.block import *; decode(encode([b'x'])).record_batch()", "arrow"),
    "a service in a test": ("import tms.testing.service", "server"),
}
COMMANDS = {
    "serve": ("serve", "server"),
    "serve's help": ("serve --help", "server"),
    "a data directory": ("topic list --data .", "embedded"),
    "fsck": ("fsck --data .", "embedded"),
    "inspect": ("inspect flights --data .", "embedded"),
    "hbase": ("hbase status --store hbase://127.0.0.1:9", "hbase"),
    "a configuration": ("doctor --config tms.toml", "server"),
}


def _installed(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The distributions that these requirements bring here, each with its own requirements."""
    brought: dict[str, metadata.Distribution] = {}
    waiting = [line for line in requirements if ";" not in line]
    while waiting:
        name = re.split(r"[^A-Za-z0-9._-]", waiting.pop())[0].lower()
        if name not in brought:
            brought[name] = metadata.distribution(name)
            waiting += [line for line in brought[name].requires or [] if ";" not in line]
    return brought


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that sees only the distribution without extras."""
    folder = tmp_path_factory.mktemp("slim")
    (folder / "tms").symlink_to(ROOT / "python" / "tms")
    for distribution in _installed(PYPROJECT["dependencies"]).values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("TMS", "PYTHON"))
    }
    return kept | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service."""
    with serving() as served:
        yield served.url


def _run(
    slim: dict[str, str], folder: Path, code: str, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],  # -S: without what is installed here
        capture_output=True,
        text=True,
        env=slim,
        cwd=folder,
        input=stdin,
        timeout=60,
    )


def _tms(
    slim: dict[str, str], folder: Path, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tms.cli.main import run; sys.exit(run(sys.argv[1:]))"
    return _run(slim, folder, code, *arguments, stdin=stdin)


def test_a_client_brings_few_packages() -> None:
    brought = _installed(PYPROJECT["dependencies"])
    assert len(brought) < PACKAGES_MAX, sorted(brought)


def test_a_client_of_a_service_needs_no_extra(
    slim: dict[str, str], tmp_path: Path, url: str
) -> None:
    done = _run(slim, tmp_path, CLIENT, url)
    assert done.returncode == 0, done.stderr


def test_the_command_line_of_a_service_needs_no_extra(
    slim: dict[str, str], tmp_path: Path, url: str
) -> None:
    commands = (
        "topic create orders",
        "publish orders --key-field customer",  # reads standard input
        "consume orders --exit-at-end",
        "consume orders --exit-at-end -o yaml",
        "topic describe orders --json",
        "topic list",
        "inspect orders",
        "doctor",
    )
    words = [[*command.split(), "--url", url] for command in commands]
    message = '{"customer": "ann", "total": 12}\n'
    done = _run(slim, tmp_path, SEVERAL, json.dumps(words), stdin=message)
    assert done.returncode == 0, done.stderr
    _, _, lines, yaml, described, listed, inspected, _ = done.stdout.split("\0")[:-1]
    assert '"total": 12' in lines
    assert "ann" in yaml
    assert json.loads(described)["topic"] == "orders"
    assert "orders" in listed
    assert inspected


def test_the_version_and_the_help_need_no_extra(slim: dict[str, str], tmp_path: Path) -> None:
    assert _tms(slim, tmp_path, "--version").stdout == f"tms {tms.__version__}\n"
    assert "serve" in _tms(slim, tmp_path, "--help").stdout


@pytest.mark.parametrize("what", MISSING)
def test_what_an_extra_brings_is_named_in_python(
    slim: dict[str, str], tmp_path: Path, what: str
) -> None:
    code, extra = MISSING[what]
    indented = "\n    ".join(code.split("; "))
    program = f"from tms.errors import ConfigError\ntry:\n    {indented}\n"
    if "import *" in code:  # allowed at the top level only
        program = program.replace(
            "try:\n    from tms.block import *\n", "from tms.block import *\ntry:\n"
        )
    program += "except ConfigError as error:\n    print(error.details['extra'], error)\n"
    done = _run(slim, tmp_path, program)
    assert done.stdout.startswith(f"{extra} "), done.stderr
    assert f"pip install 'tms-log[{extra}]'" in done.stdout
    assert LIBRARIES.get(what, LIBRARIES[extra]) in done.stdout


@pytest.mark.parametrize("what", COMMANDS)
def test_what_an_extra_brings_is_named_on_the_command_line(
    slim: dict[str, str], tmp_path: Path, what: str
) -> None:
    arguments, extra = COMMANDS[what]
    (tmp_path / "FORMAT").write_text('{"format": 2, "store": "leveldb"}')
    (tmp_path / "maps").mkdir()
    done = _tms(slim, tmp_path, *arguments.split())
    assert done.returncode == 78, done
    assert f"next:  pip install 'tms-log[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_shell_completes_commands_whose_extra_is_missing_not_at_all(
    slim: dict[str, str], tmp_path: Path
) -> None:
    words = {"_TMS_COMPLETE": "bash_complete", "COMP_WORDS": "tms ", "COMP_CWORD": "1"}
    code = "from tms.cli.main import main; main()"
    done = _run(slim | words, tmp_path, code)
    assert "plain,publish" in done.stdout and "plain,serve" not in done.stdout, done.stderr


def test_every_extra_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    gone = [name for name in PYPROJECT["optional-dependencies"] if f"`{name}`" not in readme]
    assert not gone, f"README.md says nothing of the extras {gone}"
