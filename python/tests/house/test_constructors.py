"""A constructor with many parameters says that an object is missing.

Counted is what a class says itself: the parameters of its `__init__` besides `self`, `*args` and
`**more` as one each. Records have none to count: dataclasses, named tuples and structs of msgspec
are made from their fields, which are the value.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tms"
PARAMETERS_MAX = 6
# Classes that take more, and how many. The list may only get shorter.
EXCEPTIONS: dict[str, int] = {}


def parameters(made: ast.FunctionDef) -> int:
    said = made.args
    named = [*said.posonlyargs, *said.args, *said.kwonlyargs]
    return len(named) - 1 + (said.vararg is not None) + (said.kwarg is not None)


def constructors() -> Iterator[tuple[str, int]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                        yield node.name, parameters(inner)


def test_a_constructor_takes_six_parameters_at_most() -> None:
    found = dict(constructors())
    assert len(found) > 200, "the classes of the package were not found"
    many = {name: count for name, count in found.items() if count > PARAMETERS_MAX}
    assert many == EXCEPTIONS, "group what belongs together; an exception that is gone leaves here"
