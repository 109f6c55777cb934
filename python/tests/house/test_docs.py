"""README and docs are true: their snippets run, their links resolve, their lists are complete.

`tests.snippets_kit` defines how snippets run. Those of pages that start Spark run in
`tests/spark/test_spark_docs.py`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tms
from tests.snippets_kit import PAGES, ROOT, run_page, snippets, starts_spark, url
from tms.cli.main import EXIT_CODES, cli
from tms.cli.serve import settings
from tms.errors import codes

__all__ = ["url"]

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.usefixtures("log_level")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page) and not starts_spark(page)]
)
def test_the_snippets_of_a_page_run(
    page: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, url)


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
    # In a clone of this repository:
    here = {"requirements.lock", "$TMS/integration/kafka_recipes/requirements.lock", "."}
    strange = [one for one in told if not one.strip("'\"`").startswith(("tms-log", "dist/"))]
    assert set(strange) <= here


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    missing = []
    for path, command in _walk(cli, "tms"):
        if path != "tms" and not isinstance(command, click.Group):
            missing += [path] if f"`{path}" not in text else []
        if path == "tms serve":
            continue  # docs/configuration.md has its settings
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
    """The tables of docs/security.md name the test that notices each attack."""
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
