"""Docstrings and headings name their subject first: `prose` defines the echoes, the table `[prose]`
of `rails.toml` limits their number in each room."""

import ast
from collections.abc import Mapping
from functools import cache

import pytest

from tests.house import prose
from tests.house.test_rails import LIMITS, SHOWN_MAX, off


@cache
def found() -> Mapping[str, list[str]]:
    return prose.rails()


def test_each_room_has_a_rail() -> None:
    assert sorted(found()) == sorted(LIMITS["prose"])


@pytest.mark.parametrize("name", LIMITS["prose"])
def test_a_room_has_as_many_echoes_as_its_rail_says(name: str) -> None:
    echoes = found()[name]
    wrong = off(name, len(echoes), LIMITS["prose"][name])
    assert not wrong, "\n".join([wrong, *echoes[:SHOWN_MAX]])


PLANTED = '''
"""What this module owns."""
class A:
    """One that has blocks."""
    def b(self):
        """Whether there is one."""
    async def c(self):
        """`a` is named first. What follows may begin so."""
    """What is no docstring."""
    def d(self):
        """The same for d."""
    def e(self):
        """See `d`."""
def f():
    """
    Where a block lies.
    """
def g():
    """Whose turn is it? Answers that."""
'''


def test_every_docstring_is_looked_at() -> None:
    lines = [line for line, _ in prose.docstrings(ast.parse(PLANTED))]
    assert lines == [2, 4, 15, 19, 6, 8, 11, 13]


def test_planted_docstrings_are_found() -> None:
    assert sorted(prose.echoes("a.py", prose.docstrings(ast.parse(PLANTED)))) == [
        "a.py:11 The same for d.",
        "a.py:13 See `d`.",
        "a.py:15 Where a block lies.",
        "a.py:2 What this module owns.",
        "a.py:4 One that has blocks.",
        "a.py:6 Whether there is one.",
    ]


def test_planted_headings_are_found() -> None:
    page = "# What it is\n\n## Why\n```\n# Who asks\n```\n### Who asks?\n#### **Where** ##\nWhat\n"
    assert prose.echoes("a.md", prose.headings(page)) == ["a.md:1 What it is", "a.md:8 **Where**"]


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        ("What a block has.", True),
        ("Whatever is left, in order.", True),
        ("Who asks: the principal.", True),
        ("Whoever waits is woken.", True),
        ("Whether it is open.", True),
        ("Whether it is open? True if so.", False),
        ("`Where` a block lies.", True),
        ("One that waits.", True),
        ("One of which is taken.", True),
        ("One block that waits.", False),
        ("The same as `close`.", True),
        ("The sameness of blocks.", False),
        ("See `close`.", True),
        ("Seeks the first row.", False),
        ("Wholly empty blocks.", False),
        ("True if it is open, whatever is left.", False),
    ],
)
def test_an_echo_is_known_by_its_first_words(text: str, echo: bool) -> None:
    assert prose.is_echo(text) is echo
