"""The protocols of serializers, which turn objects into bytes and back; `tms.serializers` has some.

    consumer, queue ──▶ messages of a class that knows the serializer ──▶ `message.decoded`

Invariants

* A value is decoded at its first use, never before: a consumer also gets a message that cannot be
  decoded, with its position.
* Any error of a serializer reaches callers as `Undecodable` or `Invalid`, with the reason in it.
"""

from typing import TYPE_CHECKING, Generic, Protocol, cast, overload

from tms.errors import Invalid, TMSError, Undecodable
from tms.model.json_value import JsonValue, as_json

if TYPE_CHECKING:  # type checkers have their own: for a TypeVar with a default
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    V = TypeVar("V")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=tuple[object, ...])


class Decoder(Protocol[T_co]):
    """The reading half of a serializer."""

    def decode(self, data: bytes) -> T_co:
        """The object in these bytes. Raises `Invalid`."""
        ...


class Serializer(Protocol[T]):
    """Values of one type as bytes."""

    def encode(self, value: T) -> bytes:
        """The value as bytes. Raises `Invalid`."""
        ...

    def decode(self, data: bytes) -> T:
        """The object in these bytes. Raises `Invalid`."""
        ...


class Plain:
    """Reads a value as it is."""

    def decode(self, data: bytes) -> bytes:
        """The bytes, unchanged."""
        return data


def encoded(value: object, serializer: Serializer[T]) -> bytes:
    """The value of a message that is published. Raises `Invalid`."""
    try:
        data = serializer.encode(cast(T, value))
    except TMSError:
        raise
    except Exception as exc:
        raise Invalid(
            f"A {type(value).__name__} cannot be written by {serializer!r:.80}: {exc!r:.400}",
            field="value",
        ) from exc
    if type(data) is not bytes:
        raise Invalid(
            f"A serializer makes bytes, {serializer!r:.80} has made {type(data).__name__} of a "
            f"{type(value).__name__}.",
            field="value",
        )
    return data


def decoded(value: bytes | None, decoder: Decoder[T], id: object, topic: str = "") -> T:
    """The object in the value of the message with this id. Raises `Undecodable`."""
    message = f"{id} of {topic}" if topic else f"{id}"
    place = {"id": str(id), "topic": topic} if topic else {"id": str(id)}
    if value is None:
        raise Undecodable(
            f"The message {message} is a tombstone: it has no value to decode. Look whether its "
            "value is None first.",
            field="value",
            **place,
        )
    try:
        return decoder.decode(value)
    except Exception as exc:
        reason = exc.message if isinstance(exc, TMSError) else f"{exc!r:.400}"
        raise Undecodable(
            f"The message {message} cannot be read by {decoder!r:.80}: {reason}",
            field="value",
            **place,
        ) from exc


class _Valued(Protocol):
    """A message of any kind."""

    @property
    def id(self) -> object: ...
    @property
    def value(self) -> bytes | None: ...


class ReadableValue:
    """The ways to read the value of a message; a base of the classes of messages."""

    __slots__ = ()

    @overload
    def json(self: _Valued) -> JsonValue: ...
    @overload
    def json(self: _Valued, kind: type[T]) -> T: ...
    def json(self: _Valued, kind: type[T] | None = None) -> T | JsonValue:
        """The value, read as JSON; with `kind`, a msgspec struct, dataclass, `TypedDict` or a type
        such as `dict[str, int]`, an object of it. Raises `BadJson`, or `Invalid` for a value that
        does not fit `kind` and for a tombstone."""
        return as_json(self.id, self.value, kind)

    def decode(self: _Valued, decoder: Decoder[T]) -> T:
        """The object in the value, read by a serializer of `tms.serializers` or one's own. Raises
        `Undecodable` for a value that does not fit, and for a tombstone."""
        return decoded(self.value, decoder, self.id, getattr(self, "topic", ""))


def reading(kind: type[M], serializer: Decoder[object] | None) -> type[M]:
    """The class of messages like `kind` whose `decoded` uses this serializer; `kind` itself without
    one. A class and not a field: messages stay tuples of the same length."""
    return kind if serializer is None else _MessageClass(kind, serializer).made


class _MessageClass(Generic[M]):
    """Makes the class, here and in processes that unpickle its messages: one class for each
    serializer."""

    def __init__(self, kind: type[M], serializer: Decoder[object]) -> None:
        self._origin = kind, serializer

        def read(message: M) -> object:
            return message.decode(serializer)  # type: ignore[attr-defined]

        def reduce(message: M) -> tuple[object, ...]:
            return self, tuple(message)

        members = {
            "__slots__": (),
            "__doc__": kind.__doc__,
            "__reduce__": reduce,
            "decoded": property(read, doc=getattr(kind, "decoded").__doc__),  # noqa: B009
        }
        self.made = cast(type[M], type(kind.__name__, (kind,), members))

    def __call__(self, *cells: object) -> M:
        return tuple.__new__(self.made, cells)

    def __reduce__(self) -> tuple[object, ...]:
        return _MessageClass, self._origin
