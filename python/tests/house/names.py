"""Names in backquotes, in docstrings and on pages, that claim to be names of the package.

    `log/journaled`              a path below `python/tms`, with or without `.py`
    `tms.log.journaled`          a dotted name, of a module or of a name in one
    `log.journaled.Journal`      the same, without `tms`
    `Journal.replay`             an attribute of a class of the package

Tokens of other forms are ignored, and so are classes that the package does not define. A token that
stands in a string of the package's code, or in the texts that are passed in, names something else:
the key of a record, a table's attribute, an option.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from tests.house.source import Source

QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"([a-z_]+(?:/[a-z_0-9]+)+)(?:\.py)?/?")
DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")
ATTRIBUTE = re.compile(r"([A-Z]\w*)\.(\w+)(?:\(\))?")
FILE = re.compile(r"\w+\.py")
# Folders and files of `python/tms` before docs/decisions/0046-rooms.md: a name that begins so is
# stale unless it is that of an attribute, `clock.now_ms`.
FORMER = frozenset(("journal", "tables", "compaction", "backup", "observer", "doctor", "fsck"))
FORMER |= {"shards", "glance", "clock", "decoding", "events", "extras", "forks", "options"}
FORMER |= {"retrying", "tls", "throttle"}


class Names:
    """The names that the files of a package define."""

    def __init__(self, files: Mapping[str, Source], beside: Collection[str], texts: str) -> None:
        """`beside` are paths of files that are not of the package, `texts` their contents."""
        self._files = files
        self._paths = {
            "/".join(parts[:end])
            for file in files
            for parts in [file.removesuffix(".py").split("/")]
            for end in range(1, len(parts) + 1)
        }
        self._rooms = {file.partition("/")[0] for file in files if "/" in file} | FORMER
        self._beside = {path.removesuffix(".py") for path in beside}
        self._basenames = {path.rpartition("/")[2] for path in (*files, *beside)}
        self._texts = texts

    def stale(self, text: str) -> Iterator[str]:
        """The tokens of a text that are names of the package by their form and do not exist."""
        for token in QUOTED.findall(text):
            if not self._exists(token) and not self._is_text(token):
                yield token

    def _exists(self, token: str) -> bool:
        if FILE.fullmatch(token):
            return token in self._basenames
        if match := PATH.fullmatch(token):
            path = match[1]
            return path.partition("/")[0] not in self._rooms or path in self._paths | self._beside
        if match := ATTRIBUTE.fullmatch(token):
            return self._has_attribute(match[1], match[2])
        if DOTTED.fullmatch(token) and not token.endswith(".toml"):
            return self._is_dotted(token.split("."))
        return True

    def _is_text(self, token: str) -> bool:
        return token in self._texts or token in self._strings

    def _is_dotted(self, parts: list[str]) -> bool:
        if parts[0] == "tms":
            parts = parts[1:]
        elif parts[0] not in self._rooms:
            return True
        elif "/".join(parts[:2]) not in self._paths:
            return parts[0] == "spark" or (len(parts) == 2 and parts[1] in self._attributes)
        path = ""
        while parts and (further := f"{path}/{parts[0]}".strip("/")) in self._paths:
            path, parts = further, parts[1:]
        if not parts:
            return True
        source = self._files.get(f"{path}.py") or self._files.get(f"{path}/__init__.py".strip("/"))
        if source is None or parts[0] not in _defined(source):
            return False
        return len(parts) == 1 or self._has_attribute(parts[0], parts[1])

    def _has_attribute(self, owner: str, name: str) -> bool:
        waiting, seen = [owner], set[str]()
        while waiting:
            one = waiting.pop()
            if one in seen or one in ("Protocol", "Generic"):
                continue
            if one not in self._classes:
                return True  # of another library, or no class
            seen.add(one)
            bases, names = self._classes[one]
            if name in names:
                return True
            waiting += bases
        return False

    @cached_property
    def _strings(self) -> str:
        """All strings of the code, without docstrings."""
        found = []
        for source in self._files.values():
            documented = {node.value for node in source.of(ast.Expr)}
            for node in source.of(ast.Constant):
                match node.value:
                    case str() as text if node not in documented:
                        found.append(text)
                    case bytes() as raw:
                        found.append(raw.decode("latin-1"))
        return "\0".join(found)

    @cached_property
    def _attributes(self) -> set[str]:
        return {name for _, names in self._classes.values() for name in names}

    @cached_property
    def _classes(self) -> dict[str, tuple[list[str], set[str]]]:
        """Names of bases and attributes, by class."""
        found: dict[str, tuple[list[str], set[str]]] = {}
        for source in self._files.values():
            for node in source.of(ast.ClassDef):
                bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
                names = {name for child in ast.walk(node) for name in _bound(child)}
                old = found.get(node.name, ([], set()))
                found[node.name] = (old[0] + bases, old[1] | names)
        return found


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=asname):
            yield asname or name.rpartition(".")[2]


def _defined(source: Source) -> set[str]:
    """Names that a module binds, and all that its strings name (for lazy imports)."""
    bound = {name for node in ast.walk(source.tree) for name in _bound(node)}
    texts = {node.value for node in source.of(ast.Constant) if isinstance(node.value, str)}
    return bound | texts
