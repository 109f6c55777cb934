"""What the rails count: functions of the source text of files, by their names below `python/tms`.

Each takes the parsed tree of a file and says where it found what it counts, so that a rail that is
exceeded names the lines.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tms"
BUILT_IN = {"int", "str", "bytes", "float", "bool", "list", "dict", "tuple", "set", "object"}
LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"}


@cache
def texts() -> dict[str, str]:
    """The text of each file of the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def trees() -> dict[str, ast.Module]:
    """The same, parsed."""
    return {name: ast.parse(text, name) for name, text in texts().items()}


def room(file: str) -> str:
    """The folder of a file, `top` for files beside the folders."""
    folder, slash, _ = file.partition("/")
    return folder if slash else "top"


def entries() -> list[str]:
    """What `ls python/tms` shows: folders and modules, but for `__init__.py`."""
    return sorted(
        path.name
        for path in PACKAGE.iterdir()
        if (path.is_dir() and path.name != "__pycache__")
        or (path.suffix == ".py" and path.name != "__init__.py")
    )


def folders() -> list[str]:
    """All folders of the package that hold a module, the package's own left out."""
    return sorted({name.rpartition("/")[0] for name in texts() if "/" in name})


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are neither blank, nor a comment alone, nor of a docstring."""
    docstrings = _docstring_lines(tree)
    return sum(
        bool(line := raw.strip()) and not line.startswith("#") and number not in docstrings
        for number, raw in enumerate(text.splitlines(), 1)
    )


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def aliases(tree: ast.Module) -> Iterator[str]:
    """Names of type aliases at the top of a module: `Name = Callable[…]`, `Name = A | B`,
    `Name = Other`, a `TypeAlias`, a `NewType`; a constant in capitals is none."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name[:1].isupper() and not name.isupper() and _is_type(value):
                    yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                if ast.unparse(annotation).endswith("TypeAlias"):
                    yield name


def _is_type(value: ast.expr) -> bool:
    match value:
        case ast.Subscript(value=ast.Name() | ast.Attribute()):
            return True
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _is_type_or_name(left) and _is_type_or_name(right)
        case ast.Call(func=ast.Name(id="NewType")):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in BUILT_IN or (name[:1].isupper() and not name.isupper())
        case _:
            return False


def _is_type_or_name(value: ast.expr) -> bool:
    return _is_type(value) or isinstance(value, ast.Constant)


def gathered_parameters(tree: ast.Module) -> Iterator[str]:
    """Constructors that gather parameters in `*args` or `**more`, where their number is bounded."""
    for owner in ast.walk(tree):
        for node in owner.body if isinstance(owner, ast.ClassDef) else ():
            match node:
                case ast.FunctionDef(name="__init__", args=ast.arguments(vararg=None, kwarg=None)):
                    continue
                case ast.FunctionDef(name="__init__"):
                    yield f":{node.lineno} {owner.name}"


def wired_from_outside(tree: ast.Module) -> Iterator[str]:
    """Parameters of a constructor that are none: `other.name = …` within a constructor, and
    anywhere a method or a lambda that is set as the attribute of another object. That object exists
    half made until then."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef | ast.Module):
            continue
        functions = [
            node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        methods = {function.name for function in functions}
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    wires = function.name == "__init__" or _is_function(node.value, methods)
                    for target in node.targets:
                        if wires and isinstance(target, ast.Attribute) and not _is_own(target):
                            yield f":{target.lineno} {ast.unparse(target)}"


def _is_function(value: ast.expr, methods: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id="partial")):
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr=attr) | ast.Name(id=attr):
            return attr in methods
        case _:
            return False


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def saved_lines(tree: ast.Module) -> Iterator[str]:
    """Several assignments on a line: `a, b = x, y`, where nothing of the left is used on the
    right, as a swap does."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)):
                names = {ast.unparse(one) for one in left}
                used = {
                    ast.unparse(one)
                    for value in right
                    for one in ast.walk(value)
                    if isinstance(one, ast.expr)
                }
                if len(left) == len(right) and not names & used:
                    yield f":{node.lineno} {ast.unparse(node)}"


def locks(tree: ast.Module) -> Iterator[str]:
    """Locks, conditions, events and semaphores of threads that are made."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="threading"), attr=attr)):
                if attr in LOCKS:
                    yield f":{node.lineno} {attr}"


def classes(tree: ast.Module) -> Iterator[str]:
    """Names of classes."""
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def ambiguous_aliases(files: Mapping[str, ast.Module]) -> list[str]:
    """Names of type aliases that another file has, too, for an alias or a class."""
    homes: dict[str, set[str]] = {}
    named: set[str] = set()
    for file, tree in files.items():
        own = set(aliases(tree))
        named |= own
        for name in own | set(classes(tree)):
            homes.setdefault(name, set()).add(file)
    return [
        f"{name}: {', '.join(sorted(homes[name]))}"
        for name in sorted(named)
        if len(homes[name]) > 1
    ]


def circles(arrows: Mapping[str, set[str]]) -> list[str]:
    """Groups of files that import one another, directly or through others."""
    reached = {file: _reached(arrows, file) for file in arrows}
    groups = {
        ", ".join(sorted(other for other in reached[file] if file in reached.get(other, ())))
        for file in arrows
        if file in reached[file]
    }
    return sorted(groups)


def _reached(arrows: Mapping[str, set[str]], file: str) -> set[str]:
    found: set[str] = set()
    waiting = [file]
    while waiting:
        further = arrows.get(waiting.pop(), set()) - found
        found |= further
        waiting += further
    return found
