"""The reference of `docs/python.md`: signatures and first sentences of what `tms` offers.

python -m tests.house.python_page      writes it anew, in the folder `python`
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import tms
from tests.house.source import ROOT

PAGE = ROOT / "docs" / "python.md"
BEGIN, END = "<!-- generated: reference -->", "<!-- end -->"
CLASSES = ("Bus", "Producer", "Sent", "Consumer", "Queue", "Worker", "Transaction", "View", "Table")


def signature(name: str, function: Any) -> str:
    """The signature as it stands in the source, without `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    [node] = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        del arguments.args[0]
    if arguments.posonlyargs and arguments.posonlyargs[0].arg == "self":
        del arguments.posonlyargs[0]
    for argument in (*arguments.args, *arguments.kwonlyargs, *arguments.posonlyargs):
        argument.annotation = _unquoted(argument.annotation)
    returns = _unquoted(node.returns)
    said = "" if returns is None else f" -> {ast.unparse(returns)}"
    return f"{name}({ast.unparse(arguments)}){said}".replace("'", '"')


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    """The annotation; one that is a string as what it names."""
    match annotation:
        case ast.Constant(value=str(text)):
            return ast.parse(text, mode="eval").body
        case _:
            return annotation


def sentence(documented: object) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(documented) or "").split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text, maxsplit=1)[0]


def reference() -> Iterator[str]:
    """The lines of the reference."""
    for name in ("open", "connect"):
        function = inspect.unwrap(getattr(tms, name))
        yield f"* `tms.{signature(name, function)}`: {sentence(function)}"
    for kind in CLASSES:
        offered = getattr(tms, kind)
        yield ""
        yield f"### {kind}"
        yield ""
        yield sentence(offered)
        yield ""
        for part in sorted(dir(offered)):
            found = inspect.getattr_static(offered, part)
            if part.startswith("_"):
                continue
            if isinstance(found, property):
                yield f"* `{part}`: {sentence(found)}"
            elif inspect.isfunction(found) and found.__module__.startswith("tms."):
                found = inspect.unwrap(found)
                yield f"* `{signature(part, found)}`: {sentence(found)}"


def page(text: str) -> str:
    """The page with its reference as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(reference()) + f"\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
