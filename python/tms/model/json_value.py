"""The value of a message as JSON, checked against a type if one is given."""

from typing import TypeVar

import msgspec

from tms.errors import BadJson, Invalid
from tms.runtime.decoding import from_json

T = TypeVar("T")
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def as_json(id: object, value: bytes | None, kind: type[T] | None) -> T | JsonValue:
    """The value of the message with this id. Raises `BadJson`; `Invalid` where it does not fit."""
    if value is None:
        raise Invalid(
            f"The message {id} is a tombstone: it has no value to read as JSON. Look whether "
            "its value is None first.",
            field="value",
        )
    try:
        if kind is None:
            found: JsonValue = msgspec.json.decode(value)
            return found
        return from_json(value, kind)
    except msgspec.ValidationError as exc:
        raise Invalid(
            f"The value of the message {id} is no {_name(kind)}: {exc}.", field="value"
        ) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadJson(
            f"The value of the message {id} is not JSON: {exc}. It is {value[:40]!r}; read it "
            "as `value` if it is something else."
        ) from exc


def _name(kind: object) -> str:
    return getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
