"""The snippets in README and docs, and the way they run.

Blocks marked `python` and `console` of a page run in their order, in the current directory, with
one namespace and one service; port 7070 in them means that service. In `console` blocks lines that
begin with `$` are commands; the lines behind a command are its expected output, where `…` stands
for anything. Other blocks are not run. A `tms` that needs no shell runs in this process; those in
pipes and loops are processes.

`from tests.snippets_kit import url` imports the fixture.
"""

import fnmatch
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tms
from tests.cli_kit import Ended, tms_command
from tests.http_kit import serving

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
_BLOCK = re.compile(r"^( *)```(python|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?:localhost|127\.0\.0\.1):7070")
_SHELL = set("|&;<>()$`*?~{}!#\\")  # a command with one of these runs in the shell
_SPARK = re.compile(r"\btms\.spark\b")


class Snippet(NamedTuple):
    """A block of a page."""

    line: int
    kind: str
    text: str


def snippets(page: str) -> list[Snippet]:
    """The blocks of a page that run."""
    text = (ROOT / page).read_text()
    return [
        Snippet(text.count("\n", 0, match.start()) + 2, match[2], textwrap.dedent(match[3]))
        for match in _BLOCK.finditer(text)
    ]


def starts_spark(page: str) -> bool:
    """True if a snippet of the page needs a session of Spark."""
    return any(
        snippet.kind == "python" and _SPARK.search(snippet.text) for snippet in snippets(page)
    )


@pytest.fixture
def url() -> Iterator[str]:
    """A service."""
    with serving() as served:
        served.service.engine.start()
        yield served.url


def run_page(page: str, url: str, edit: Callable[[str], str] = str) -> None:
    """Run all snippets of a page, each as `edit` returns it."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        for snippet in snippets(page):
            text = edit(_PORT.sub(url.removeprefix("http://"), snippet.text))
            if snippet.kind == "python":
                padded = "\n" * (snippet.line - 1) + text
                exec(compile(padded, str(ROOT / page), "exec"), namespace)
            else:
                _run_console(page, snippet.line, text, url)
    finally:
        for value in namespace.values():
            if isinstance(value, tms.Bus):
                value.close()


def _run_console(page: str, line: int, text: str, url: str) -> None:
    tools = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TMS_")},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TMS_URL": url,
        "XDG_CONFIG_HOME": str(Path.cwd() / "config"),
    }
    for command, expected in _commands(text):
        made = _run(command, environment)
        where = f"{page}, block at line {line}: {command}"
        assert made.returncode == 0, f"{where}\n{made.stdout}{made.stderr}"
        if expected:
            pattern = expected.replace("[", "[[]").replace("…", "*")
            matched = fnmatch.fnmatchcase(made.stdout.rstrip(), pattern.rstrip())
            assert matched, f"{where}\n{made.stdout}"


def _run(command: str, environment: dict[str, str]) -> "Ended | subprocess.CompletedProcess[str]":
    """Run a command as a shell does; `tms` in this process if it needs no shell."""
    if command.startswith("tms ") and not _SHELL.intersection(command):
        return tms_command(*shlex.split(command)[1:], env=environment)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands, continued ones joined, with their expected outputs."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        command = lines.pop(0)
        while command.rstrip().endswith("\\") and lines:
            command += lines.pop(0)
        yield command, "".join(lines)
