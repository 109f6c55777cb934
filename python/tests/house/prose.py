"""Openings of docstrings and headings that make a reader start twice, by room.

A docstring names its subject first. It begins neither with a free relative ("What …", "Whether …")
nor with an echo ("One that …", "The same …", "See …"). A question, which ends with a question mark,
may begin like a free relative.

Each function takes texts or trees, so that a test can plant them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.house import counting
from tests.house.source import PACKAGE, ROOT, sources

OPENING = re.compile(
    r"[\W_]*(?:(?:What|Whatever|Who|Whom|Whose|Whoever|Whichever|Whether|Where|Wherever|See)\b"
    r"|One (?:that|who|which|whose|of which)\b|The same\b)"
)
HEADING = re.compile(r"#{1,6} +(.*?)[ #]*$")
FENCE = re.compile(r" *(```|~~~)")
# Trees of Python beside the package, each a rail of its own, below the root of the repository.
BESIDE = {
    "tests": "python/tests",
    "sim": "python/sim",
    "lanes": "python/lanes",
    "mutants": "python/mutants",
    "bench": "python/bench",
    "integration": "integration",
}
PREFIX = "prose_"


def is_echo(text: str) -> bool:
    """True if a docstring or heading begins with a free relative or an echo."""
    return bool(OPENING.match(text)) and not _first_sentence(text).endswith("?")


def _first_sentence(text: str) -> str:
    sentence = re.match(r".*?[.?!:](?=\s|$)", " ".join(text.split()))
    return sentence[0] if sentence else text.strip()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a module, its classes and its functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def headings(page: str) -> Iterator[tuple[int, str]]:
    """Line and text of each heading of a Markdown page; code blocks have none."""
    code = False
    for number, line in enumerate(page.splitlines(), 1):
        if FENCE.match(line):
            code = not code
        elif not code and (heading := HEADING.match(line)):
            yield number, heading[1]


def echoes(name: str, texts: Iterator[tuple[int, str]]) -> list[str]:
    """`file:line text` of each docstring or heading of a file that begins with an echo."""
    return [f"{name}:{line} {text.splitlines()[0]}" for line, text in texts if is_echo(text)]


def pages() -> list[Path]:
    """All Markdown pages of the repository: those at the top and everything below `docs`."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def rails() -> Mapping[str, list[str]]:
    """Echoes by rail: `prose_ROOM` for each room of the package, for each tree of `BESIDE`, and
    `prose_docs` for the headings of the pages."""
    found: dict[str, list[str]] = {}
    for file, source in sources().items():
        rail = found.setdefault(PREFIX + counting.room(file), [])
        rail += echoes(f"{PACKAGE.relative_to(ROOT)}/{file}", docstrings(source.tree))
    for rail, folder in BESIDE.items():
        found[PREFIX + rail] = [
            echo
            for path in sorted((ROOT / folder).rglob("*.py"))
            for echo in echoes(
                path.relative_to(ROOT).as_posix(), docstrings(ast.parse(path.read_text()))
            )
        ]
    found[f"{PREFIX}docs"] = [
        echo
        for path in pages()
        for echo in echoes(path.relative_to(ROOT).as_posix(), headings(path.read_text()))
    ]
    return found
