"""The sections of docs/kafka-recipes.md, whose files and commands the tests run.

A block ```` ```properties connect.properties ```` is a file; a block ```` ```sh ```` has commands.
Addresses in them are replaced by those of the test. A command of Maven that names a pom and a
folder, and one of pip that names a lock file and an environment, fill their folder once for all
runs; the recipe has a link to it.

    python -m integration.kafka_recipes.page     # before the tests, so that none waits for it
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from integration.cluster.process import Process
from integration.cluster.runtime import cache, filled, jars, succeed
from integration.kafka_clients.service import KafkaService

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kafka-recipes.md"
SERVERS = "127.0.0.1:9092"  # on the page
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # programs run for seconds
COMMAND_S = 240
INSTALL_S = 300
_BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAVEN = re.compile(r"mvn .* -f \$TMS/(\S+)(?: -P(\S+))? -DoutputDirectory=\$PWD/(\S+)")
_PIP = re.compile(r"(\S+)/bin/pip install .*--requirement \$TMS/(\S+)")


class Recipe:
    """A section of the page in a directory, for a service; `others` are addresses of the page with
    those to use instead."""

    def __init__(
        self,
        title: str,
        directory: Path,
        service: KafkaService,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMS": str(ROOT),
            "TMS_URL": service.url,
            "JAVA_TOOL_OPTIONS": JAVA,
        }
        directory.mkdir(parents=True, exist_ok=True)
        used = {SERVERS: service.servers, **(others or {})}
        shown = re.compile(rf"\b(?:{'|'.join(map(re.escape, used))})\b")
        text = shown.sub(lambda match: used[match[0]], PAGE.read_text())
        (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        self._commands: list[str] = []
        for language, name, body in _BLOCK.findall(section):
            if name:
                (directory / name).write_text(body)
            elif language == "sh":
                self._commands += body.replace("\\\n", "").splitlines()
        for folder, target in _fetched("\n".join(self._commands)):
            link = directory / folder
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(target)

    def run(self, begin: str) -> str:
        """The output of the command that begins so, once it has ended well."""
        command = self._command(begin)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def process(self, begin: str, name: str) -> Process:
        """The command that begins so as a process, not yet started; its log is NAME.log."""
        command = shlex.split(self._command(begin))
        return Process(name, command, self.directory / f"{name}.log")

    def _command(self, begin: str) -> str:
        (found,) = [one for one in self._commands if one.startswith(begin)]
        return found


def fetch() -> None:
    """Fetch what the commands of all recipes need."""
    for _ in _fetched(PAGE.read_text().replace("\\\n", "")):
        pass


def _fetched(commands: str) -> Iterator[tuple[str, Path]]:
    """Each folder that the commands fill, and the one that is filled in its place."""
    for pom, profile, folder in _MAVEN.findall(commands):
        profiles = [profile] if profile else []
        yield folder, jars(folder, ROOT / pom, *profiles)
    for folder, lock in _PIP.findall(commands):
        yield folder, _environment(ROOT / lock)


def _environment(lock: Path) -> Path:
    """The folder of an environment with the packages of a lock file."""
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return filled(cache() / f"kafka-recipes-{digest}", lambda fresh: _install(lock, fresh))


def _install(lock: Path, fresh: Path) -> None:
    uv = str(Path(sys.executable).parent / "uv")
    wrong = f"uv could not install the packages of {lock}; check the network and try again"
    succeed([uv, "venv", "-q", "--relocatable", "--python", sys.executable, str(fresh)], 60, wrong)
    install = (uv, "pip", "install", "-q", "--python", str(fresh), "--require-hashes")
    succeed([*install, "--requirement", str(lock)], INSTALL_S, wrong)


if __name__ == "__main__":
    fetch()
