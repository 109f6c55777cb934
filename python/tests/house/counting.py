"""The counters of the rails: functions of the sources of a package.

Each returns the places of what it counts, so that a rail that is exceeded lists the lines.
"""

import ast
from collections.abc import Iterator, Mapping

from tests.house import test_imports
from tests.house.source import Function, Source, arrows

BUILT_IN = {"int", "str", "bytes", "float", "bool", "list", "dict", "tuple", "set", "object"}
LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"}
Files = Mapping[str, Source]


def room(file: str) -> str:
    """The folder of a file; `top` for files beside the folders."""
    folder, slash, _ = file.partition("/")
    return folder if slash else "top"


def entries(files: Files) -> list[str]:
    """Folders and modules that `ls python/tms` lists, without `__init__.py`."""
    return sorted({name.partition("/")[0] for name in files} - {"__init__.py"})


def folders(files: Files) -> list[str]:
    """All folders below the package that hold a module."""
    return sorted({name.rpartition("/")[0] for name in files if "/" in name})


def code_lines(source: Source) -> int:
    """Number of lines that are neither blank, nor a comment alone, nor part of a docstring."""
    docstrings = _docstring_lines(source)
    return sum(
        bool(line := raw.strip()) and not line.startswith("#") and number not in docstrings
        for number, raw in enumerate(source.text.splitlines(), 1)
    )


def _docstring_lines(source: Source) -> set[int]:
    lines: set[int] = set()
    for node in source.of(ast.Expr):
        match node.value:
            case ast.Constant(value=str()):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def aliases(source: Source) -> Iterator[str]:
    """Names of type aliases at the top of a module: `Name = Callable[…]`, `Name = A | B`,
    `Name = Other`, a `TypeAlias`, a `NewType`; a constant in capitals is none."""
    for node in source.tree.body:
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


def ambiguous_aliases(files: Files) -> list[str]:
    """Names of type aliases that are also the name of an alias or a class in another file."""
    homes: dict[str, set[str]] = {}
    named: set[str] = set()
    for file, source in files.items():
        own = set(aliases(source))
        named |= own
        for name in own | {node.name for node in source.of(ast.ClassDef)}:
            homes.setdefault(name, set()).add(file)
    return [
        f"{name}: {', '.join(sorted(homes[name]))}"
        for name in sorted(named)
        if len(homes[name]) > 1
    ]


def gathered_parameters(files: Files) -> list[str]:
    """Constructors with `*args` or `**more`: `test_constructors` cannot count their arguments."""
    return [
        f"{file}:{node.lineno} {owner.name}"
        for file, source in files.items()
        for owner in source.of(ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if node.args.vararg or node.args.kwarg
    ]


def set_from_outside(files: Files) -> list[str]:
    """Constructor parameters in disguise: attributes of other objects that are assigned

    * within a constructor,
    * to an object that the same function has just made, of a class of another file,
    * through an own attribute, `self.a.b = x`, with an argument of the method as value,
    * with a function as value, or if the attribute is called somewhere and is no method.
    """
    names = _Names(files)
    return [
        f"{file}:{target.lineno} {ast.unparse(target)}"
        for file, source in files.items()
        for node in (*source.of(ast.Assign), *source.of(ast.AnnAssign))
        for target in _foreign_targets(node)
        if names.wires(source, node, target)
    ]


class _Names:
    """Names of the package that show whether an assignment completes an object."""

    def __init__(self, files: Files) -> None:
        self.methods: set[str] = set()
        self.classes: dict[str, str] = {}
        self.called: set[str] = set()
        for file, source in files.items():
            for owner in source.of(ast.ClassDef):
                self.classes[owner.name] = file
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                self.methods |= {node.name for node in owner.body if isinstance(node, functions)}
            for call in source.of(ast.Call):
                if isinstance(call.func, ast.Attribute):
                    self.called.add(call.func.attr)

    def wires(self, source: Source, node: ast.Assign | ast.AnnAssign, to: ast.Attribute) -> bool:
        """True if the assignment gives an object what its constructor should take."""
        owner, function = source.around(to.lineno)
        if function is None:
            return False
        return (
            function.name == "__init__"
            or to.attr in self.called - self.methods
            or _is_function(node.value, owner)
            or _is_passed_on(node.value, function, to)
            or self._is_new(source, function, to)
        )

    def _is_new(self, source: Source, function: ast.AST, to: ast.Attribute) -> bool:
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[target], value=ast.Call(func=made)):
                    home = self.classes.get(ast.unparse(made).rpartition(".")[2], source.name)
                    if home != source.name and ast.unparse(target) == ast.unparse(to.value):
                        return True
        return False


def _foreign_targets(node: ast.Assign | ast.AnnAssign) -> Iterator[ast.Attribute]:
    waiting = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
    while waiting:
        match waiting.pop():
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                waiting += parts
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) as target if not name.startswith("__"):
                yield target


def _is_function(value: ast.expr | None, owner: ast.ClassDef | None) -> bool:
    body = [] if owner is None else owner.body
    match value:
        case ast.Lambda() | ast.Call(func=ast.Name(id="partial")):
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            return any(isinstance(node, functions) and node.name == attr for node in body)
        case _:
            return False


def _is_passed_on(value: ast.expr | None, function: Function, to: ast.Attribute) -> bool:
    match to.value, value:
        case ast.Attribute(value=ast.Name(id="self")), (
            ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))
        ):
            taken = function.args
            return name in {one.arg for one in (*taken.args[1:], *taken.kwonlyargs)}
        case _:
            return False


def saved_lines(files: Files) -> list[str]:
    """Assignments of several values on one line, `a, b = x, y`; a swap or a rotation, which uses a
    name of the left on the right, is none."""
    return [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, source in files.items()
        for node in source.of(ast.Assign)
        if _saves_lines(node)
    ]


def _saves_lines(node: ast.Assign) -> bool:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)):
            names = {ast.unparse(one) for one in left}
            used = {
                ast.unparse(one)
                for value in right
                for one in ast.walk(value)
                if isinstance(one, ast.Name | ast.Attribute | ast.Subscript)
            }
            return len(left) == len(right) and not names & used
        case _:
            return False


def locks_of_threads(files: Files) -> list[str]:
    """Constructions of locks, conditions, events and semaphores of threads, also by a field's
    `default_factory`."""
    return [
        f"{file}:{made.lineno} {ast.unparse(made)}"
        for file, source in files.items()
        for imported in [{name for _, name, _ in source.imports if name.startswith("threading.")}]
        for made in (
            *(call.func for call in source.of(ast.Call)),
            *(kw.value for kw in source.of(ast.keyword) if kw.arg == "default_factory"),
        )
        if _is_lock(made, imported)
    ]


def _is_lock(made: ast.expr, imported: set[str]) -> bool:
    match made:
        case ast.Attribute(value=ast.Name(id="threading"), attr=name):
            return name in LOCKS
        case ast.Name(id=name):
            return name in LOCKS and f"threading.{name}" in imported
        case _:
            return False


def exceptions(_: Files) -> list[str]:
    """Grants of `test_imports.EXCEPTIONS`: each is a file and one room that it may import."""
    return [
        f"{file} may import {granted}"
        for file, rooms in test_imports.EXCEPTIONS.items()
        for granted in sorted(rooms)
    ]


def imports_up(files: Files) -> list[str]:
    """Pairs of a file and a file of a later room of `test_imports.MAY_IMPORT` that it imports, at
    the top or within a function."""
    rows = {file: test_imports.room(file) for file in files}
    rank = {row: number for number, row in enumerate(test_imports.MAY_IMPORT)}
    return [
        f"{file} imports {target}"
        for file, targets in arrows(files).items()
        for target in sorted(targets)
        if rows[file].partition("/")[0] != rows[target].partition("/")[0]
        if rank[rows[file]] < rank[rows[target]]
    ]


def files_in_circles(files: Files) -> list[str]:
    """Files that import themselves through others, also within functions or for types only."""
    imported = arrows(files, types=True)
    return [file for file in imported if file in _reached(imported, file)]


def _reached(imported: Mapping[str, set[str]], file: str) -> set[str]:
    found: set[str] = set()
    waiting = [file]
    while waiting:
        further = imported.get(waiting.pop(), set()) - found
        found |= further
        waiting += further
    return found
