"""Names of the package in docstrings and on pages exist; `names` says which tokens are such names.

Decision records and the changelog describe the past, and are not checked.
"""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.house import prose
from tests.house.names import Names
from tests.house.source import ROOT, parse, sources

BESIDE = [*prose.BESIDE.values(), "examples"]  # folders with Python beside the package
TEXTS = ("coprocessor/src/main/**/*.java", "docker/chart/**/*.yaml")  # with names of their own
PAST = ("CHANGELOG.md", "docs/decisions/")


@cache
def names() -> Names:
    beside = [
        path.relative_to(ROOT / folder).as_posix()
        for folder in BESIDE
        for path in (ROOT / folder).rglob("*.py")
    ]
    texts = [path.read_text() for pattern in TEXTS for path in ROOT.glob(pattern)]
    return Names(sources(), beside, "\n".join(texts))


def texts() -> Iterator[tuple[str, str]]:
    """Docstrings of the package and lines of pages, each with its place."""
    for file, source in sources().items():
        for line, text in prose.docstrings(source.tree):
            yield f"python/tms/{file}:{line}", text
    for path in prose.pages():
        page = path.relative_to(ROOT).as_posix()
        if not page.startswith(PAST):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                yield f"{page}:{line}", text


def test_names_in_docstrings_and_pages_exist() -> None:
    stale = [f"{place} `{token}`" for place, text in texts() for token in names().stale(text)]
    assert not stale, "\n".join(stale)


JOURNAL = """
LIMIT = 1
class Journal:
    size: int
    def replay(self): ...
"""
PACKAGE = {
    "__init__.py": "",
    "log/__init__.py": "",
    "log/journaled.py": JOURNAL,
    "log/cache.py": "class Tail(Journal):\n    def __init__(self): self.end = 0",
    "cli/main.py": "OPTION = 'tms.option'\nKEY = b'log/key'",
}


@pytest.mark.parametrize(
    ("token", "stale"),
    [
        ("log/journaled", False),
        ("log/journaled.py", False),
        ("log/", False),
        ("log/gone", True),
        ("log/key", False),
        ("log/test_log.py", False),
        ("media/gone", False),
        ("journal/journaled", True),
        ("main.py", False),
        ("test_log.py", False),
        ("gone.py", True),
        ("tms.log.journaled", False),
        ("tms.log.journaled.LIMIT", False),
        ("tms.log.journaled.Journal.replay", False),
        ("tms.log.journaled.Journal.gone", True),
        ("tms.log.gone", True),
        ("tms.gone", True),
        ("tms.option", False),
        ("tms.java.option", False),
        ("tms.toml", False),
        ("log.journaled", False),
        ("log.journaled.Journal", False),
        ("log.journaled.gone", True),
        ("log.gone", True),
        ("log.replay", False),
        ("journal.journaled", True),
        ("clock.replay", False),
        ("clock.gone", True),
        ("other.gone", False),
        ("Journal.replay", False),
        ("Journal.replay()", False),
        ("Journal.size", False),
        ("Journal.gone", True),
        ("Tail.end", False),
        ("Tail.replay", False),
        ("Tail.gone", True),
        ("Other.gone", False),
        ("any other text", False),
    ],
)
def test_a_planted_token_is_stale_if_its_name_does_not_exist(token: str, stale: bool) -> None:
    files = {name: parse(name, text) for name, text in PACKAGE.items()}
    found = list(Names(files, ["log/test_log.py"], '"tms.java.option"').stale(f"See `{token}`."))
    assert found == [token] * stale
