"""Every bound in the source: numbers with a name at the top of a module, and the fields with a
number of the dataclasses that hold limits.

    log.reader._LOOK_BYTES               a name of a module
    log.partition.LogLimits.producers    a field of a class

Numbers without a name are not found; `unnamed` lists those that look like sizes.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tms

Number = int | float
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
_HOLDS_LIMITS = re.compile(r"(Limits|Config|Bounds|Options|Settings)$")
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


class Bound(NamedTuple):
    """A number in the source, its place, and its value there."""

    module: str  # without `tms.`
    name: str
    default: Number

    @property
    def path(self) -> str:
        """The path by which the table names the bound."""
        return f"{self.module}.{self.name}"


class _Facts(NamedTuple):
    """The facts of a module that are kept: its syntax tree would take a megabyte."""

    bounds: tuple[Bound, ...]
    imported: tuple[tuple[str, str], ...]  # paths of names of other modules, and their names here


@cache
def bounds() -> dict[str, Bound]:
    """All bounds, by path."""
    return {bound.path: bound for facts in _facts().values() for bound in facts.bounds}


@cache
def users() -> dict[str, tuple[tuple[str, str], ...]]:
    """The modules that look up the name of a bound, and its name there, by path of the bound."""
    found: dict[str, list[tuple[str, str]]] = {}
    for module, facts in _facts().items():
        for path, name in facts.imported:
            found.setdefault(path, []).append((module, name))
    return {
        path: ((bound.module, bound.name), *found.get(path, ()))
        for path, bound in bounds().items()
        if "." not in bound.name
    }


def looked_up(path: str) -> bool:
    """True if some function reads this name when it runs. A name that only defaults and other
    constants use cannot be drawn."""
    return any(name in _names_in_functions()[module] for module, name in users()[path])


def unnamed() -> Iterator[str]:
    """Numbers within functions that look like sizes: `n << m` with an m of 10 or more."""
    for module, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.LShift):
                        right = _value(inner.right, {})
                        if _value(inner.left, {}) is not None and (right or 0) in (10, 20, 30):
                            yield f"{module}:{inner.lineno}"


@cache
def _names_in_functions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, tree in _modules():
        names = found[module] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for line in node.body:
                    names |= {one.id for one in ast.walk(line) if isinstance(one, ast.Name)}
            elif isinstance(node, ast.Lambda):
                names |= {one.id for one in ast.walk(node.body) if isinstance(one, ast.Name)}
    return found


@cache
def _facts() -> dict[str, _Facts]:
    return {
        module: _Facts(tuple(_of(module, tree)), tuple(_imported(tree.body)))
        for module, tree in _modules()
    }


def _modules() -> Iterator[tuple[str, ast.Module]]:
    root = Path(next(iter(tms.__path__)))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text())


def _imported(body: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Paths of the names of TMS that these statements import, and their names here."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.startswith("tms."):
                for alias in node.names:
                    yield f"{module.removeprefix('tms.')}.{alias.name}", alias.asname or alias.name
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            for part in ("body", "orelse", "handlers", "finalbody", "cases"):
                yield from _imported(getattr(node, part, ()))


def _of(module: str, tree: ast.Module) -> Iterator[Bound]:
    known: dict[str, Number] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _HOLDS_LIMITS.search(node.name):
            for name, value in _assigned(node.body):
                number = _value(value, known)
                if number is not None:
                    yield Bound(module, f"{node.name}.{name}", number)
    for name, value in _assigned(tree.body):
        number = _value(value, known)
        if number is not None and _NAME.fullmatch(name):
            known[name] = number
            yield Bound(module, name, number)


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for one, value in pairs:
            if isinstance(one, ast.Name):
                yield one.id, value


def _value(node: ast.expr, known: dict[str, Number]) -> Number | None:
    """The value of an expression of numbers; None for any other expression."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number: Number = node.value  # type: ignore[assignment]
        return number
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, known), _value(node.right, known)
        if left is not None and right is not None:
            return _OPERATORS[type(node.op)](left, right)
    return None
