"""A room that lists its modules lists all of them, and no others.

A list is what the docstring of an `__init__.py` holds in lines of a name, two spaces or more, and a
description. Names are modules, folders, or other files of the room.
"""

import re
from collections.abc import Iterator, Mapping

import pytest

from tests.house.source import PACKAGE, Source, parse, sources

_LISTED = re.compile(r"^ *([a-z][a-z0-9_]*(?:\.[a-z]+)?) {2,}\S", re.MULTILINE)


def listed(source: Source) -> list[str]:
    """The names that the docstring of a room lists."""
    return _LISTED.findall(source.docstring)


def modules(room: str, names: Mapping[str, object]) -> set[str]:
    """The modules and folders of a room, whose `__init__.py` is `room`."""
    folder = room.removesuffix("__init__.py")
    inside = {name.removeprefix(folder) for name in names if name.startswith(folder)}
    return {name.partition("/")[0].removesuffix(".py") for name in inside} - {"__init__"}


def wrong(room: str, files: Mapping[str, Source]) -> Iterator[str]:
    """Names that a room lists and does not have, and names that it has and does not list."""
    names, inside = listed(files[room]), modules(room, files)
    folder = (PACKAGE / room).parent
    if names:
        others = [name for name in names if name not in inside]
        yield from (f"{name} is not there" for name in others if not (folder / name).is_file())
        yield from (f"{name} is not listed" for name in sorted(inside.difference(names)))


def rooms() -> Iterator[str]:
    """The rooms that list something. Collecting tests parses these files only, not the package."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if listed(parse(name, path.read_text())):
            yield name


@pytest.mark.parametrize("room", list(rooms()))
def test_a_room_lists_the_modules_that_it_has(room: str) -> None:
    found = list(wrong(room, sources()))
    assert not found, f"{room}: {found}"


def test_a_list_that_is_stale_is_noticed() -> None:
    text = '"""A room.\n\n    one    is there\n    two    is not\n\nA sentence  of prose."""'
    files = {name: parse(name, text) for name in ("a/__init__.py", "a/one.py", "a/b/three.py")}
    assert list(wrong("a/__init__.py", files)) == ["two is not there", "b is not listed"]
