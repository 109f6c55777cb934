"""Names of options and fields: the error for a misspelt name suggests the nearest one."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tms.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


def check_options(call: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises `Invalid` for a name that is not allowed."""
    known = sorted(allowed)
    for name in given:
        if name not in known:
            import difflib  # takes as long to import as all of `tms`

            near = difflib.get_close_matches(name, known, 1, 0.5)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise Invalid(
                f"{call} has no option {name!r}.{meant} It takes {', '.join(known)}.", field=name
            )


def named_options(call: Callable[P, T]) -> Callable[P, T]:
    """A function of the package `tms` that checks its options first."""
    code, name = call.__code__, f"{call.__module__}.{call.__name__}"
    allowed = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(call)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        check_options(name, options, allowed)
        return call(*args, **options)

    return checked


def named_fields(kind: type[C]) -> type[C]:
    """A dataclass that checks the names of its fields first."""
    made: Any = kind
    right, allowed = made.__init__, made.__dataclass_fields__
    name = f"{kind.__module__}.{kind.__qualname__}"

    @wraps(right)
    def checked(self: C, *args: object, **options: object) -> None:
        check_options(name, options, allowed)
        right(self, *args, **options)

    made.__init__ = checked
    return kind
