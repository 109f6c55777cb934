"""Commands that are one operation of `tms.api` each, made of its declaration.

    @runs(grant, "add", AccessApi.add_grant)
    def add(session: Session, made: Grant, given: Given) -> None: …  # prints the result

* A required parameter becomes an argument, any other one an option of its name. `lease_s` is
  `--lease 30s`: a duration.
* Type, bounds, choices and default are those of the declaration. Its description is the help,
  unless the command has words of its own (`help`).
"""

from collections.abc import Callable, Mapping
from inspect import Parameter
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import click
import msgspec

from tms.api import operation
from tms.api.operation import Field, Operation
from tms.cli.parameters import GROUP, SECONDS, TOPIC, Parsed
from tms.cli.session import Session, Shared
from tms.model.topic import TopicName

Given = Mapping[str, Any]  # the arguments and options of a command, by name
Printer = Callable[[Session, Any, Given], Any]  # prints a result; may return the exit code
F = TypeVar("F", bound=Callable[..., Any])
_PARTS = {  # of a bus, by protocol
    "AccessApi": attrgetter("admin.access"),
    "QueuesApi": attrgetter("admin.queues"),
    "TransactionsApi": attrgetter("admin.transactions"),
}


def runs(
    group: click.Group,
    command: str,
    method: Callable[..., Any],
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    help: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Printer], Printer]:
    """Add a command to `group` that calls the operation `method` declares and passes the result to
    the decorated function, whose docstring is the command's help. `names` are other names of
    parameters, `help` the words of options."""
    sent = Operation("", method).sent

    def add(printer: Printer) -> Printer:
        @click.pass_obj
        def run(session: Session, /, **given: Any) -> Any:
            arguments = {name: given[names.get(name, name)] for name in sent}
            for name, field in sent.items():
                if field.codec is operation.TOPIC:
                    arguments[name] = TopicName.parse(arguments[name])
            return printer(session, _call(session, method, arguments), given)

        takes(method, names=names, help=help)(run)
        group.command(command, cls=Shared, help=printer.__doc__)(run)
        return printer

    return add


def takes(
    method: Callable[..., Any],
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    help: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[F], F]:
    """A decorator for the function of a command that takes the parameters of an operation;
    see `runs`."""

    def decorate(function: F) -> F:
        for name, field in reversed(Operation("", method).sent.items()):
            function = _parameter(field, names.get(name, name), help.get(name))(function)
        return function

    return decorate


def _call(session: Session, method: Callable[..., Any], arguments: Given) -> Any:
    """The result of an operation. Raises `ConfigError` if the operation needs a running service and
    the target is a data directory."""
    protocol = method.__qualname__.partition(".")[0]
    if protocol in _PARTS:
        with session.bus() as bus:
            return getattr(_PARTS[protocol](bus), method.__name__)(**arguments)
    service = getattr(session.transport(), protocol.removesuffix("Api").lower())
    return getattr(service, method.__name__)(**arguments)


def _parameter(field: Field, name: str, help: str | None) -> Callable[[F], F]:
    shape: Mapping[str, Any] = msgspec.json.schema(field.codec.shape)
    shape = next((one for one in shape.get("anyOf", ()) if one.get("type") != "null"), shape)
    kind = _kind(field, name, shape)
    if field.default is Parameter.empty:
        tokens = shape.get("type") == "array"
        return click.argument(name, type=kind, nargs=-1 if tokens else 1, required=True)
    default = f"[{field.default:,}]" if isinstance(field.default, int) else ""
    text = help or f"{shape.get('description', '')} {default}".strip()
    option = f"--{name.removesuffix('_s').replace('_', '-')}"
    short = ["-n"] if name == "limit" else []
    return click.option(*short, option, name, type=kind, default=field.default, help=text)


def _kind(field: Field, name: str, shape: Mapping[str, Any]) -> click.ParamType[Any]:
    """The type of a parameter on the command line."""
    if field.codec is operation.TOPIC or name == "group":
        return TOPIC if field.codec is operation.TOPIC else GROUP
    if "enum" in shape:
        return click.Choice(shape["enum"])
    match shape["type"]:
        case "integer":
            return click.IntRange(shape.get("minimum"), shape.get("maximum"))
        case "number":
            return SECONDS
        case "string" if field.default is Parameter.empty:
            return Parsed(name, field.codec.decode)
        case _:
            return click.STRING
