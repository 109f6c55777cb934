"""The source text of the package, parsed once for all tests that count or follow it.

Invariants

* A file is parsed once in a process. The nodes of its tree are grouped by type, so that a test
  visits only the kinds of nodes that it needs.
* Every answer of a `Source` follows from its name and its text, so a test can plant a text.
"""

import ast
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

PACKAGE = Path(__file__).resolve().parents[2] / "tms"
ROOT = PACKAGE.parents[1]
N = TypeVar("N", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One imported name, at the top of a module or within a function."""

    line: int
    dotted: str
    for_types: bool  # below `if TYPE_CHECKING`


@dataclass(frozen=True)
class Source:
    """One file: its name below `python/tms`, its text, and its nodes by type."""

    name: str
    text: str
    tree: ast.Module
    nodes: Mapping[type[ast.AST], list[ast.AST]]

    def of(self, kind: type[N]) -> Iterator[N]:
        """All nodes of exactly this type."""
        for node in self.nodes.get(kind, ()):
            assert isinstance(node, kind)
            yield node

    def functions(self) -> Iterator[Function]:
        """All functions and methods, plain and asynchronous."""
        yield from self.of(ast.FunctionDef)
        yield from self.of(ast.AsyncFunctionDef)

    def around(self, line: int) -> tuple[ast.ClassDef | None, Function | None]:
        """The innermost class and the innermost function that contain a line."""
        return _innermost(self.of(ast.ClassDef), line), _innermost(self.functions(), line)

    @cached_property
    def docstring(self) -> str:
        """The docstring of the module; empty if it has none."""
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imported names, by line."""
        checked = [
            (node.body[0].lineno, node.body[-1].end_lineno or 0)
            for node in self.of(ast.If)
            if "TYPE_CHECKING" in ast.unparse(node.test)
        ]
        named = [(node, "", alias) for node in self.of(ast.Import) for alias in node.names]
        named += [(node, f"{node.module}.", alias) for node in self._from() for alias in node.names]
        return tuple(
            sorted(
                Import(
                    node.lineno,
                    prefix + alias.name,
                    any(first <= node.lineno <= last for first, last in checked),
                )
                for node, prefix, alias in named
            )
        )

    def _from(self) -> Iterator[ast.ImportFrom]:
        for node in self.of(ast.ImportFrom):
            where = f"{self.name}:{node.lineno}"
            assert node.level == 0, f"{where}: relative import; write the full name"
            yield node


def _innermost(nodes: Iterator[N], line: int) -> N | None:
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno, default=None)


def parse(name: str, text: str) -> Source:
    """A file with this text."""
    tree = ast.parse(text, name)
    nodes: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
    return Source(name, text, tree, nodes)


@cache
def sources() -> dict[str, Source]:
    """All files of the package, by name."""
    gc.disable()  # a tree has no garbage, and its half a million nodes would be searched for it
    try:
        return {
            name: parse(name, path.read_text())
            for path in sorted(PACKAGE.rglob("*.py"))
            for name in [path.relative_to(PACKAGE).as_posix()]
        }
    finally:
        gc.enable()


def module_file(dotted: str, names: Mapping[str, object]) -> str | None:
    """The file, one of `names`, that holds a dotted name; None outside of `tms`."""
    parts = dotted.split(".")
    if parts[0] != "tms":
        return None
    while len(parts) > 1:
        path = "/".join(parts[1:])
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if candidate in names:
                return candidate
        parts.pop()
    return "__init__.py"


def arrows(files: Mapping[str, Source], types: bool = False) -> dict[str, set[str]]:
    """The files that each file imports, also within functions; with `types` also those that it
    imports for type checking only."""
    return {
        name: {
            target
            for _, dotted, for_types in source.imports
            if types or not for_types
            if (target := module_file(dotted, files)) not in (None, name)
        }
        for name, source in files.items()
    }
