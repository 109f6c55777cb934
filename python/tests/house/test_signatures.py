"""Signatures of `tms` and `tms.aio` are explicit: no `Any`, and no `**more` of any kind."""

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import tms
import tms.aio

LOOSE = re.compile(r"\bAny\b")
# Parameters of any type, by the name of their function. The list may only get shorter.
EXCEPTIONS: dict[str, str] = {}


def calls(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public callable: functions, and public methods of classes, also inherited."""
    for name in module.__all__:
        offered = getattr(module, name)
        if inspect.isfunction(offered):
            yield name, offered
        elif inspect.isclass(offered) and not issubclass(offered, Exception):
            for part in dir(offered):
                found = inspect.getattr_static(offered, part)
                found = getattr(found, "__func__", found)  # of a class method
                if isinstance(found, property):
                    found = found.fget
                own = part in ("__init__", "__iter__", "__aiter__") or not part.startswith("_")
                if own and inspect.isfunction(found) and found.__module__.startswith("tms."):
                    yield f"{name}.{part}", found


def loose(function: Callable[..., Any]) -> list[str]:
    """The parts of its signature that say nothing."""
    signature = inspect.signature(function)
    found = []
    for one in signature.parameters.values():
        said = str(one.annotation)
        typed = "Unpack" in said or said.startswith("*<class")
        many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and not typed
        silent = one.annotation is one.empty and one.name not in ("self", "cls")
        if many or silent or LOOSE.search(said):
            found.append(str(one))
    if LOOSE.search(str(signature.return_annotation)):
        found.append(f"-> {signature.return_annotation}")
    return found


@pytest.mark.parametrize("module", [tms, tms.aio], ids=["tms", "tms.aio"])
def test_public_signatures_say_what_they_take(module: ModuleType) -> None:
    found = dict(calls(module))
    assert len(found) > 60, "the classes that users call were not found"
    said = {name: ", ".join(loose(function)) for name, function in found.items()}
    assert {name: text for name, text in said.items() if text} == {
        name: text for name, text in EXCEPTIONS.items() if name in found
    }


def test_what_says_nothing_is_noticed() -> None:
    def wide(first: Any, *rest: int, **more: Any) -> dict[str, Any]:
        raise NotImplementedError

    assert len(loose(wide)) == 4
