"""The number of constructor parameters: a constructor with many parameters lacks an object.

The parameters of a class's own `__init__` besides `self` are counted. A rail limits the
constructors that hide parameters in `*args` or `**more`. Records have no `__init__` to count:
dataclasses, named tuples and structs of msgspec are made from their fields, which are the value.
"""

import ast
from collections.abc import Iterator

from tests.house.source import sources

PARAMETERS_MAX = 6
# Classes that take more, and how many. The list may only get shorter.
EXCEPTIONS: dict[str, int] = {}


def parameters(init: ast.FunctionDef) -> int:
    """Number of named parameters besides `self`."""
    return len([*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]) - 1


def constructors() -> Iterator[tuple[str, int]]:
    """Each class with an `__init__`, and the number of its parameters."""
    for source in sources().values():
        for owner in source.of(ast.ClassDef):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    yield owner.name, parameters(node)


def test_a_constructor_takes_six_parameters_at_most() -> None:
    found = dict(constructors())
    assert len(found) > 200, "the classes of the package were not found"
    many = {name: count for name, count in found.items() if count > PARAMETERS_MAX}
    assert many == EXCEPTIONS, "group what belongs together; an exception that is gone leaves here"
