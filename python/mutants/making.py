"""The mutants of some files, and a seeded sample of them.

Invariants

* The same files and seed give the same sample.
* The sample leaves out changes that no test has to notice: prose (literals with a blank in them,
  the texts of errors), calls that write the log of operations, and `None` in the place of `False`.
"""

import ast
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import NamedTuple

import libcst as cst
import libcst.matchers as m
from mutmut.mutation.file_mutation import create_mutations

_FALSE = m.Assign(value=m.Name("False")) | m.AnnAssign(value=m.Name("False"))
_LOGGING = m.Call(func=m.Attribute(value=m.Name("_log")))


class Mutant(NamedTuple):
    """A file with one change. Lines count from 1: the lines of the original that differ."""

    file: Path
    code: str
    lines: range
    before: str
    after: str


def sample(files: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """At most `count` mutants of all that can be made, in the order of files and lines."""
    places = [(file, at) for file in files for at in range(_Source(file).count)]
    chosen = sorted(Random(seed).sample(places, min(count, len(places))))
    sources = {file: _Source(file) for file in {file for file, _ in chosen}}
    return [sources[file].mutant(at) for file, at in chosen]


class _Source:
    """A file and its possible changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._text = file.read_text()
        self._module, mutations, _, _ = create_mutations(str(file), self._text)
        quiet = {id(node) for call in m.findall(self._module, _LOGGING) for node in _below(call)}
        self._changes = [
            (one.original_node, one.mutated_node)
            for one in mutations
            if one.contained_by_top_level_function is not None
            and id(one.original_node) not in quiet
            and not _is_prose(one.original_node)
            and not m.matches(one.original_node, _FALSE)
        ]
        self.count = len(self._changes)

    def mutant(self, at: int) -> Mutant:
        before, after = self._changes[at]
        code = cst.ensure_type(self._module.deep_replace(before, after), cst.Module).code
        old, new = self._text.splitlines(), code.splitlines()
        blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        _, first, last, first_new, last_new = next(one for one in blocks if one[0] != "equal")
        return Mutant(
            self._file,
            code,
            _whole(self._text, range(first + 1, max(last, first + 1) + 1)),
            "\n".join(old[first:last]),
            "\n".join(new[first_new:last_new]),
        )


def _whole(text: str, lines: range) -> range:
    """Every line of the statement that begins before these lines and ends with or behind them: of a
    statement over several lines only some lines are traced."""
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.stmt) and not hasattr(one, "body"):
            whole = range(one.lineno, (one.end_lineno or one.lineno) + 1)
            if lines[0] in whole and lines[-1] in whole:
                return whole
    return lines


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _below(child)


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in node.value
