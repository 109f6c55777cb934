"""The tests of a file, and the run that each belongs to, read from its source without importing it.

* `pytest.mark.long` on a test, on its class, in `pytestmark` of its file, or on all parameters of a
  `parametrize` or fixture: the test runs in `make test-long` only. Marks on some parameters, or
  parameters that are `drawn`: it has cases in both runs. No mark: it runs in `make test`.
* Every `mark.long` of a file is one of these, or `Source.untold` names its line: a mark that comes
  about in another way, such as under a name of its own, would put a test into the wrong run.
"""

import ast
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Run(Enum):
    """The runs that have a test."""

    LANDING = "landing"
    BOTH = "both"  # some cases in a landing, more in the long run
    LONG = "long"


class Collected(NamedTuple):
    """A test, or a class of tests, with the full names of the classes that it derives from."""

    name: str  # `file::test`, `file::Class`, `file::Class::test`
    run: Run
    bases: tuple[str, ...] = ()


class Source:
    """A file of tests."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.tree = ast.parse(text, file)
        self._told: set[int] = set()  # marks whose effect is known
        self._module_long = self._is_long(_pytestmark(self.tree.body))

    @cached_property
    def tests(self) -> dict[str, Collected]:
        """The tests and classes of tests, by name."""
        return {test.name: test for test in self._collect()}

    @cached_property
    def untold(self) -> list[str]:
        """The lines with a mark of the long run of which no test can be told to have it."""
        assert self.tests is not None  # reading them tells of the marks
        return [
            f"{self.file}:{mark.lineno}" for mark in _marks(self.tree) if id(mark) not in self._told
        ]

    @cached_property
    def imported(self) -> dict[str, str]:
        """The dotted names of imports of the file, by their names here."""
        names: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    @cached_property
    def texts(self) -> set[str]:
        """All constant strings of the file."""
        return {
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def _collect(self) -> Iterator[Collected]:
        for node in self.tree.body:
            if isinstance(node, Function):
                yield Collected(f"{self.file}::{node.name}", self._run(node, self._module_long))
            elif isinstance(node, ast.ClassDef):
                yield from self._class(node)
            elif isinstance(node, ast.Assign):  # for example TestAgreement = Agreement.TestCase
                for target in node.targets:
                    name = ast.unparse(target)
                    if name.startswith("Test"):
                        run = Run.LONG if self._module_long else Run.LANDING
                        yield Collected(f"{self.file}::{name}", run)

    def _class(self, node: ast.ClassDef) -> Iterator[Collected]:
        name, run = f"{self.file}::{node.name}", self._run(node, self._module_long)
        long = run is Run.LONG or self._is_long(_pytestmark(node.body))
        bases = tuple(self._resolved(ast.unparse(base)) for base in node.bases)
        yield Collected(name, Run.LONG if long else run, bases)
        for inner in node.body:
            if isinstance(inner, Function) and inner.name.startswith("test"):
                yield Collected(f"{name}::{inner.name}", self._run(inner, long))

    def _run(self, node: Function | ast.ClassDef, long: bool) -> Run:
        runs = [Run.LONG] if long else []
        for decorator in node.decorator_list:
            if self._is_long([decorator]):
                runs.append(Run.LONG)
            elif isinstance(decorator, ast.Call) and len(decorator.args) > 1:  # parametrize
                runs.append(self._of_parameters(decorator.args[1]))
        runs += [self._of_parameters(self._fixtures[name]) for name in self._used(node)]
        if Run.LONG in runs:
            return Run.LONG
        return Run.BOTH if Run.BOTH in runs else Run.LANDING

    def _used(self, node: Function | ast.ClassDef) -> list[str]:
        """The fixtures with parameters, of this file, that a test takes."""
        if isinstance(node, ast.ClassDef):
            return []
        return [each.arg for each in node.args.args if each.arg in self._fixtures]

    def _of_parameters(self, node: ast.expr) -> Run:
        if isinstance(node, ast.Name):
            node = self._constants.get(node.id, node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "drawn":
            return Run.BOTH
        if not isinstance(node, ast.List | ast.Tuple):
            return Run.LANDING
        long = []
        for each in node.elts:
            marks = (
                [one.value for one in each.keywords if one.arg == "marks"] if _param(each) else []
            )
            long.append(self._is_long(marks))
        return Run.LONG if long and all(long) else Run.BOTH if any(long) else Run.LANDING

    def _is_long(self, marks: list[ast.expr]) -> bool:
        """True if one of these marks is that of the long run; the whole of it, or one of a list."""
        found = False
        for mark in marks:
            listed = mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]
            for each in filter(_is_mark, listed):
                self._told.add(id(each))
                found = True
        return found

    @cached_property
    def _constants(self) -> dict[str, ast.expr]:
        return {
            ast.unparse(node.targets[0]): node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
        }

    @cached_property
    def _fixtures(self) -> dict[str, ast.expr]:
        """The parameters of the fixtures of this file that have some, by name."""
        return {
            node.name: keyword.value
            for node in self.tree.body
            if isinstance(node, Function)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.fixture"
            for keyword in decorator.keywords
            if keyword.arg == "params"
        }

    def _resolved(self, base: str) -> str:
        """The full name of a class, `file::Class` if it stands in this tree."""
        name, _, inner = base.partition(".")
        dotted = self.imported.get(name, "")
        if not dotted:
            return f"{self.file}::{base}"
        module, _, last = (f"{dotted}.{inner}" if inner else dotted).rpartition(".")
        folder = "" if module.startswith("integration") else "python/"
        return f"{folder}{module.replace('.', '/')}.py::{last}"


def _pytestmark(body: list[ast.stmt]) -> list[ast.expr]:
    return [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]


def _param(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param"


def _is_mark(node: ast.AST) -> bool:
    """True for `pytest.mark.long` and `mark.long`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "long"):
        return False
    return ast.unparse(node.value) in ("pytest.mark", "mark")


def _marks(tree: ast.AST) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if _is_mark(node))  # type: ignore[misc]
