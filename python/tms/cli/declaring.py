"""Arguments and options of a command, declared by the signature of its function.

    def list_(session: Session, topic: TopicParameter, limit: LimitOption = 20) -> None: …

    LimitOption = Annotated[int, "-n", click.IntRange(min=1), "At most so many. [20]"]

* A parameter without a default is an argument. One with a default is an option of its name, such as
  `--dry-run` for `dry_run`; so is each one that names an option.
* The type is that of the annotation: a `bool` is a flag, a `tuple` may be repeated, a `Literal` is
  a choice. `Annotated` adds, in any order, a type of click, names, further settings of click, and
  the help. A text that begins with a dash is a name. `ARGUMENT` makes an argument of a parameter
  that has a default.
* A parameter whose type is a dataclass stands for its fields, which are options. So does
  `**settings: Unpack[T]` for the keys of the `TypedDict` T; a key that is not typed is None.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import click


class _Mark(Enum):
    ARGUMENT = "argument"


ARGUMENT = _Mark.ARGUMENT


class _Declared(NamedTuple):
    """An annotation: the type of a value, and the notes of `Annotated`."""

    kind: Any
    notes: tuple[Any, ...] = ()
    repeated: bool = False

    @classmethod
    def by(cls, annotation: Any) -> "_Declared":
        """Read an annotation."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            inner = cls.by(arguments[0])
            return inner._replace(notes=inner.notes + arguments[1:])
        if origin in (Union, UnionType):
            return cls.by(next(one for one in arguments if one is not NoneType))
        if origin is tuple:
            return cls.by(arguments[0])._replace(repeated=True)
        if origin is Literal:
            return cls(str, (click.Choice(arguments),))
        return cls(annotation)

    @property
    def names(self) -> list[str]:
        """The names of an option."""
        texts = (note for note in self.notes if isinstance(note, str))
        return [text for text in texts if text.lstrip(" /").startswith("-")]

    def settings(self, default: Any) -> dict[str, Any]:
        """The settings of click."""
        found: dict[str, Any] = {"type": self.kind, "required": default is Parameter.empty}
        if default not in (Parameter.empty, None, ()) and default is not False:
            found["default"] = default
        for note in self.notes:
            if isinstance(note, click.ParamType):
                found["type"] = note
            elif isinstance(note, Mapping):
                found |= note
            elif isinstance(note, str) and note not in self.names:
                found["help"] = note
        return found


def option(name: str, annotation: Any, default: Any = None, **more: Any) -> click.Option:
    """The option that a parameter declares, with `more` settings of click."""
    declared = _Declared.by(annotation)
    names = declared.names
    if not any("--" in text for text in names):
        names.append(f"--{name.replace('_', '-')}")
    settings = declared.settings(default) | more
    if declared.kind is bool:
        settings |= {"is_flag": True, "type": None}
    return click.Option([name, *names], multiple=declared.repeated, **settings)


def _parameter(name: str, annotation: Any, default: Any) -> click.Parameter:
    declared = _Declared.by(annotation)
    if declared.names or (default is not Parameter.empty and ARGUMENT not in declared.notes):
        return option(name, annotation, default)
    nargs = -1 if declared.repeated else 1
    return click.Argument([name], nargs=nargs, **declared.settings(default))


def declared_by(function: Callable[..., Any]) -> tuple[list[click.Parameter], Callable[..., Any]]:
    """The parameters of a command, and the function that takes all of them by name. The first
    parameter of `function` is the session; those that a decorator has declared stay as they are."""
    known = {made.name: made for made in getattr(function, "__click_params__", ())}
    bundles: dict[str, type] = {}
    found: list[click.Parameter] = []
    for one in list(signature(function).parameters.values())[1:]:
        if one.name in known:
            found.append(known[one.name])
        elif one.kind is Parameter.VAR_KEYWORD:
            keys = get_args(one.annotation)[0].__annotations__
            found += [option(key, annotation) for key, annotation in keys.items()]
        elif isinstance(one.annotation, type) and is_dataclass(one.annotation):
            bundles[one.name] = one.annotation
            found += [option(*field) for field in _fields(one.annotation)]
        else:
            found.append(_parameter(one.name, one.annotation, one.default))

    @wraps(function)
    def run(session: Any, /, **given: Any) -> Any:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field: given.pop(field) for field, *_ in _fields(bundle)})
        return function(session, **given)

    return found, run


def _fields(bundle: type) -> list[tuple[str, Any, Any]]:
    parameters = signature(bundle).parameters.values()
    return [(one.name, one.annotation, one.default) for one in parameters]
