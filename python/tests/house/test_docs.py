"""README and docs say what is true: their snippets run, their links lead somewhere, their lists are
whole.

Blocks marked `python` and `console` of a page run in their order, in one temporary directory, with
one namespace and one service; where they name port 7070, that service is meant. In `console` blocks
lines that begin with `$` are commands; what follows a command is what it must print, where `…`
stands for anything. Blocks marked otherwise are not run.
"""

import fnmatch
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pytest

import tms
from tests.http_kit import serving
from tests.spark_kit import spark
from tms.cli.main import EXIT_CODES, cli
from tms.cli.serve import settings
from tms.errors import codes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
BLOCK = re.compile(r"^( *)```(python|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
RELATIVE = re.compile(r'"(\w+\.(?:parquet|checkpoint))"')
PORT = re.compile(r"(?:localhost|127\.0\.0\.1):7070")


class Snippet(NamedTuple):
    """A block of a page."""

    line: int
    kind: str
    text: str


def _snippets(page: str) -> list[Snippet]:
    text = (ROOT / page).read_text()
    return [
        Snippet(text.count("\n", 0, match.start()) + 2, match[2], textwrap.dedent(match[3]))
        for match in BLOCK.finditer(text)
    ]


@pytest.fixture
def url() -> Iterator[str]:
    """A service."""
    with serving() as served:
        served.service.engine.start()
        yield "http://{}:{}".format(*served.address)


@pytest.fixture
def spark_here(spark: "SparkSession", tmp_path: Path) -> Iterator[None]:
    """The Spark of all tests, whose files without a directory are in a temporary one: Java's own
    working directory cannot be changed."""
    hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    yield
    files.setWorkingDirectory(before)


@pytest.mark.timeout(300)  # docs/spark.md starts a Spark
@pytest.mark.parametrize("page", [page for page in PAGES if _snippets(page)])
def test_the_snippets_of_a_page_run(
    page: str,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "docs/spark.md":  # what it calls "the one there is" is that of all tests
        request.getfixturevalue("spark_here")
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        for snippet in _snippets(page):
            text = PORT.sub(url.removeprefix("http://"), snippet.text)
            if page == "docs/spark.md":  # tasks do not always resolve names as `spark_here` says
                text = RELATIVE.sub(rf'"{tmp_path}/\1"', text)
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
        made = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        where = f"{page}, block at line {line}: {command}"
        assert made.returncode == 0, f"{where}\n{made.stdout}{made.stderr}"
        if expected:
            pattern = expected.replace("[", "[[]").replace("…", "*")
            matched = fnmatch.fnmatchcase(made.stdout.rstrip(), pattern.rstrip())
            assert matched, f"{where}\n{made.stdout}"


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands, continued ones joined, and what each is said to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        command = lines.pop(0)
        while command.rstrip().endswith("\\") and lines:
            command += lines.pop(0)
        yield command, "".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    targets = LINK.findall((ROOT / page).read_text())
    broken = [
        target
        for target in targets
        if ":" not in target and not (ROOT / page).parent.joinpath(target).exists()
    ]
    assert not broken, f"{page} links to {broken}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_installs_this_distribution_and_not_another_one_called_tms(page: str) -> None:
    told = re.findall(r"pip install (?:--\S+ )*(\S+)", (ROOT / page).read_text())
    here = {"requirements.lock", "."}  # in a clone of this repository
    strange = [one for one in told if not one.strip("'\"`").startswith(("tms-log", "dist/"))]
    assert set(strange) <= here


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    missing = []
    for path, command in _walk(cli, "tms"):
        if path != "tms" and not isinstance(command, click.Group):
            missing += [path] if f"`{path}" not in text else []
        if path == "tms serve":
            continue  # its settings stand in docs/configuration.md
        context = click.Context(command)
        for param in command.get_params(context):
            flags = [name for name in param.opts if name.startswith("--")]
            missing += [f"{path} {flag}" for flag in flags if f"`{flag}" not in text]
    assert not [one for one in missing if not one.endswith(("--help", "--version"))]


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk(found, f"{path} {name}")


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"\n| {code} |" in text for code in {0, 1, 2, 130, *EXIT_CODES.values()})


def test_every_error_code_is_documented() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    assert [code for code in codes() if f"`{code}`" not in text] == []


def test_every_setting_is_documented_with_its_flag_and_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    rows = [f"| `{key}` | `{flag}` | `{default}` |" for key, flag, _, default in settings()]
    assert [row for row in rows if row not in text] == []


def test_every_test_of_an_attack_is_there() -> None:
    """The tables of docs/security.md say which test notices each attack."""
    tests = ROOT / "python" / "tests"
    source = "\n".join(path.read_text() for path in tests.rglob("test_*.py"))
    text = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`((?:\w+/)?test_\w+)(?:\.py)?`", text))
    gone = [
        name
        for name in sorted(named)
        if not (tests / f"{name}.py").exists() and f"def {name}(" not in source
    ]
    assert len(named) > 50 and not gone, gone


def test_the_changelog_names_the_version() -> None:
    assert f"## {tms.__version__}" in (ROOT / "CHANGELOG.md").read_text()
