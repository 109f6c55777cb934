"""Values of types: a serializer makes bytes of an object, and an object of bytes.

    ORDERS = Json(Order)
    bus.producer("orders", serializer=ORDERS).send(order)      or ORDERS.encode(order)
    bus.consumer("orders", serializer=ORDERS)                  its messages have `decoded`
    order = message.decode(ORDERS)                             of any message

Invariants

* Values that cannot be encoded, or that do not fit when they are read, raise `Invalid`; nothing is
  guessed.
* A serializer reads all that it writes, because it writes no value of another type.
* A serializer has no state that calls change: one serves all threads. It can be pickled, so the
  messages that it reads can.

`Json` and `MessagePack` take msgspec structs, dataclasses, `TypedDict`s and types such as
`dict[str, int]`, `Pydantic` its models, `Avro` records by their schema. Whatever has `encode` and
`decode` is a `Serializer`.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from tms.errors import Invalid
from tms.model.serializer import Serializer
from tms.runtime.decoding import make_json_decoder, make_msgpack_decoder
from tms.runtime.extras import needed

__all__ = ["Avro", "Json", "MessagePack", "Pydantic", "Serializer"]

T = TypeVar("T")
Out = TypeVar("Out", covariant=True)


class _MsgspecDecoder(Protocol[Out]):
    def decode(self, data: bytes, /) -> Out: ...


class _Typed(Generic[T]):
    """An encoding of msgspec, of a type."""

    _encode: Callable[[object], bytes]
    _decoder_of: Callable[..., "_MsgspecDecoder[Any]"]

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder: _MsgspecDecoder[T] = self._decoder_of(kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_name(self._kind)})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._kind,)

    def encode(self, value: T) -> bytes:
        """The value, encoded. Raises `Invalid`."""
        try:
            data = self._encode(value)
            self._decoder.decode(data)  # neither the encoder nor a dataclass looks at types
        except Exception as exc:
            raise _unwritable(value, self._kind, exc) from exc
        return data

    def decode(self, data: bytes) -> T:
        """The object in what was encoded. Raises `Invalid`."""
        return _decoded(self._decoder.decode, data, self._kind)


class Json(_Typed[T]):
    """JSON of a type."""

    _encode = staticmethod(msgspec.json.encode)
    _decoder_of = staticmethod(make_json_decoder)


class MessagePack(_Typed[T]):
    """MessagePack of a type: smaller than JSON, and faster."""

    _encode = staticmethod(msgspec.msgpack.encode)
    _decoder_of = staticmethod(make_msgpack_decoder)


class PydanticModel(Protocol):
    """The parts of `pydantic.BaseModel` in use; it is not imported here."""

    def model_dump_json(self, *, by_alias: bool, round_trip: bool) -> str: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Self: ...


Model = TypeVar("Model", bound=PydanticModel)


class Pydantic(Generic[Model]):
    """JSON of a pydantic model."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"Pydantic({_name(self._model)})"

    def __reduce__(self) -> tuple[object, ...]:
        return Pydantic, (self._model,)

    def encode(self, value: Model) -> bytes:
        """The model as JSON. Raises `Invalid`."""
        try:
            if not isinstance(value, self._model):
                raise TypeError("it is none")
            return value.model_dump_json(by_alias=True, round_trip=True).encode()
        except Exception as exc:
            raise _unwritable(value, self._model, exc) from exc

    def decode(self, data: bytes) -> Model:
        """The model in this JSON, validated. Raises `Invalid`."""
        return _decoded(self._model.model_validate_json, data, self._model)


class Avro:
    """Records of one Avro schema, a mapping as `json.load` reads it, without a container: the
    reader has to know the schema. With `writer`, the schema that values were written by, they are
    read as `schema` by Avro's rules. Raises `ConfigError` without fastavro, `Invalid`."""

    def __init__(
        self, schema: Mapping[str, object], writer: Mapping[str, object] | None = None
    ) -> None:
        with needed("tms.serializers.Avro", "avro"):
            import fastavro
        self._given = schema, writer
        try:
            self._schema = fastavro.parse_schema(dict(schema))
            self._writer = fastavro.parse_schema(dict(writer or schema))
        except Exception as exc:  # fastavro has no root of its errors
            raise Invalid(f"The Avro schema cannot be used: {exc!r}.", field="schema") from exc
        self._write = fastavro.schemaless_writer
        self._read = fastavro.schemaless_reader

    def __repr__(self) -> str:
        return f"Avro({self._given[0].get('name')})"

    def __reduce__(self) -> tuple[object, ...]:
        return Avro, self._given

    def encode(self, value: Mapping[str, object]) -> bytes:
        """The record as Avro. Raises `Invalid`."""
        out = io.BytesIO()
        try:
            self._write(out, self._schema, dict(value))
        except Exception as exc:
            raise _unwritable(value, "Avro record", exc) from exc
        return out.getvalue()

    def decode(self, data: bytes) -> Mapping[str, object]:
        """The record in these bytes. Raises `Invalid`."""

        def read(data: bytes) -> Mapping[str, object]:
            source = io.BytesIO(data)
            found = self._read(source, self._writer, self._schema)
            if source.tell() < len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes are left behind the record")
            assert isinstance(found, Mapping), "the schema is that of a record"
            return found

        return _decoded(read, data, "Avro record")


def _unwritable(value: object, kind: object, why: Exception) -> Invalid:
    return Invalid(
        f"A {type(value).__name__} cannot be written as {_name(kind)}: {why!s:.400}", field="value"
    )


def _decoded(decode: Callable[[bytes], T], data: bytes, kind: object) -> T:
    try:
        return decode(data)
    except Exception as exc:
        raise Invalid(
            f"The value {data[:40]!r} is no {_name(kind)}: {exc!s:.400}", field="value"
        ) from exc


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
