"""The clients' programs, installed on first use and kept in the user's cache.

    python -m integration.kafka_clients.install     # before the tests, so that none waits for it

Versions are pinned in `javascript/package-lock.json`, `go/go.mod`, `java/pom.xml` and
`requirements-dev.lock`. kcat comes from the system's packages.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from integration.cluster.runtime import Runtime, Unavailable, filled, jars, java, succeed

HERE = Path(__file__).parent
GO, JAVA, JAVASCRIPT = HERE / "go", HERE / "java", HERE / "javascript"
LOCK = HERE.parents[1] / "requirements-dev.lock"
PYTHON = ("aiokafka", "confluent-kafka", "kafka-python")  # in the environment of all tests
INSTALL_S = 900
HEAP_MB = 128
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


def pins() -> dict[str, str]:
    """The pinned version of each client. kcat has that of the system's packages."""
    locked = dict(re.findall(r"^([\w-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    packages = json.loads((JAVASCRIPT / "package-lock.json").read_text())["packages"]
    go = re.search(r"twmb/franz-go v(\S+)", (GO / "go.mod").read_text())
    tools = re.search(
        r"kafka-tools</artifactId>\s*<version>([^<]+)", (JAVA / "pom.xml").read_text()
    )
    assert go and tools
    return {
        "Kafka's Java client and tools": tools[1],
        "franz-go": go[1],
        "KafkaJS": packages["node_modules/kafkajs"]["version"],
        **{name: locked[name] for name in PYTHON},
    }


def program(name: str, package: str) -> str:
    """The path of a program. Raises `Unavailable` if it is not there."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(
            f"{name} is needed and not on PATH; install it (on Debian: apt-get install {package}), "
            "or let `make test-kafka` install it as root"
        )
    return found


@cache
def java_program(main: str) -> list[str]:
    """The command that runs a Java file of ours."""
    runtime = Runtime(java(), _jars())
    classes = runtime.compiled(JAVA / f"{main}.java")
    return _java(f"{classes}:{runtime.lib}/*", main)


def java_tool(main: str) -> list[str]:
    """The command that runs a class of Kafka's tools."""
    return _java(f"{_jars()}/*", f"org.apache.kafka.tools.{main}")


def _java(path: str, main: str) -> list[str]:
    return [java(), f"-Xmx{HEAP_MB}m", *_JVM, "-cp", path, main]


def _jars() -> Path:
    return jars("kafka-clients", JAVA / "pom.xml")


@cache
def javascript_program() -> list[str]:
    """The command that runs the program with KafkaJS."""
    node, npm = program("node", "nodejs"), program("npm", "npm")

    def fill(fresh: Path) -> None:
        shutil.copytree(JAVASCRIPT, fresh)
        command = (npm, "ci", "--no-audit", "--no-fund")
        succeed(command, INSTALL_S, "npm could not install KafkaJS", fresh)

    return [node, str(filled(_cached(JAVASCRIPT), fill) / "client.js")]


@cache
def go_program() -> list[str]:
    """The command that runs the program with franz-go."""

    def fill(fresh: Path) -> None:
        shutil.copytree(GO, fresh)
        command = (_go(), "build", "-trimpath", "-o", "client", ".")
        succeed(command, INSTALL_S, "Go could not build the program with franz-go", fresh)

    return [str(filled(_cached(GO), fill) / "client")]


@cache
def franz_go_tests() -> Path:
    """The program that runs franz-go's own tests, built from its module."""

    def fill(fresh: Path) -> None:
        module = _module(_go(), "github.com/twmb/franz-go", GO)
        copy = ("cp", "-r", "--no-preserve=mode", str(module), str(fresh))
        succeed(copy, INSTALL_S, "franz-go could not be copied")
        command = (_go(), "test", "-c", "-o", "kgo.test", "./pkg/kgo")
        succeed(command, INSTALL_S, "Go could not build franz-go's tests", fresh)

    return filled(_cached(GO, "tests"), fill) / "kgo.test"


@cache
def _go() -> str:
    """The path of Go, of the release that `go.mod` names or a later one. Where that on PATH is
    older, as Debian's is, it fetches the module that holds the release."""
    go = program("go", "golang-go")
    told = subprocess.run((go, "env", "GOVERSION"), capture_output=True, text=True, timeout=60)
    needs = re.search(r"^go (\S+)", (GO / "go.mod").read_text(), re.MULTILINE)
    assert needs
    if _release(told.stdout) >= _release(needs[1]):
        return go
    system = subprocess.run((go, "env", "GOOS", "GOARCH"), capture_output=True, text=True)
    release = f"v0.0.1-go{needs[1]}.{'-'.join(system.stdout.split())}"
    folder = _module(go, f"golang.org/toolchain@{release}", Path("/"))
    for tool in *(folder / "bin").iterdir(), *folder.glob("pkg/tool/*/*"):
        tool.chmod(0o555)  # older releases unpack modules without this
    return str(folder / "bin" / "go")


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _module(go: str, name: str, within: Path) -> Path:
    """The folder of a module, fetched with the versions and hashes of the module in `within`."""
    told = subprocess.run(
        (go, "mod", "download", "-json", name),
        cwd=within,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
    )
    if told.returncode != 0:
        raise Unavailable(f"Go could not fetch {name}:\n{told.stdout}{told.stderr}")
    return Path(json.loads(told.stdout)["Dir"])


def _cached(source: Path, *more: str) -> Path:
    """A folder of the cache that belongs to the files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(source.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tms"
    return root / "-".join(["kafka", source.name, *more, digest.hexdigest()[:16]])


def main() -> None:
    """Install all programs."""
    program("kcat", "kcat")
    for name in "Client", "Console":
        java_program(name)
    javascript_program()
    go_program()
    franz_go_tests()


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        sys.exit(f"error: {error}")
