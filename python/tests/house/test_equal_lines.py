"""Synchronous and asyncio code shares what it does: few lines of a synchronous file stand in its
asyncio counterpart, too.

Counted are lines of function bodies in runs of at least two, once `async`, `await` and the `Async`
of names are gone. Signatures do not count: `test_aio_is_complete` wants them equal.
"""

import ast
import re
from difflib import SequenceMatcher

import pytest

from tests.house.source import Source, parse, sources

EQUAL_LINES_MAX = 98  # lower it when there are fewer; 135 before messages were handed out once
RUN_MIN = 2
PAIRS = {
    "client/client.py": "client/aio/bus.py",
    "client/coalescing.py": "client/aio/coalescing.py",
    "client/consumer.py": "client/aio/consumer.py",
    "client/producer.py": "client/aio/producer.py",
    "client/queue.py": "client/aio/queues.py",
    "client/table.py": "client/aio/table.py",
    "client/transaction.py": "client/aio/transaction.py",
    "client/worker.py": "client/aio/worker.py",
    "client/http/channel.py": "client/http/aio.py",
    "client/telemetry/bus.py": "client/telemetry/aio.py",
}
_ASYNC = re.compile(r"\b(?:async|await) |Async")


def bodies(source: Source) -> list[str]:
    """The lines of all function bodies, without comments and docstrings."""
    wanted: set[int] = set()
    functions = [*source.of(ast.FunctionDef), *source.of(ast.AsyncFunctionDef)]
    for function in functions:
        for node in function.body:
            wanted |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for function in functions:  # of a function within another one
        wanted -= set(range(function.lineno, function.body[0].lineno))
    for node in source.of(ast.Expr):
        if isinstance(node.value, ast.Constant):
            wanted -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line.strip() for line in source.text.splitlines()]
    found = [lines[number - 1] for number in sorted(wanted)]
    return [_ASYNC.sub("", line) for line in found if line and not line.startswith("#")]


def equal_lines(one: Source, other: Source) -> list[str]:
    """The equal lines of two files, in runs."""
    left = bodies(one)
    matcher = SequenceMatcher(None, left, bodies(other), autojunk=False)
    runs = [run for run in matcher.get_matching_blocks() if run.size >= RUN_MIN]
    return [line for run in runs for line in left[run.a : run.a + run.size]]


def test_few_lines_are_equal_in_synchronous_and_asyncio_code() -> None:
    files = sources()
    found = [
        f"{name}: {line}"
        for name, twin in PAIRS.items()
        for line in equal_lines(files[name], files[twin])
    ]
    assert len(found) <= EQUAL_LINES_MAX, "\n".join(found)
    assert len(found) > EQUAL_LINES_MAX - 10, f"lower EQUAL_LINES_MAX to {len(found)}"


@pytest.mark.parametrize(
    ("text", "twin", "count"),
    [
        (
            "def f():\n    a = g()\n    return a\n",
            "async def f():\n    a = await g()\n    return a\n",
            2,
        ),
        ("def f():\n    return g()\n", "async def f():\n    return await g()\n", 0),
        ("def f(\n    a, b\n):\n    return 1\n", "async def f(\n    a, b\n):\n    return 2\n", 0),
    ],
)
def test_equal_lines_are_found(text: str, twin: str, count: int) -> None:
    assert len(equal_lines(parse("one.py", text), parse("other.py", twin))) == count
