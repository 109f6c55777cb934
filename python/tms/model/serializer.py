"""What makes bytes of objects, and objects of bytes; `tms.serializers` has some."""

from typing import Protocol, TypeVar

from tms.errors import Invalid

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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


def decoded(id: object, value: bytes | None, decoder: Decoder[T]) -> T:
    """The object in the value of the message with this id. Raises `Invalid`."""
    if value is None:
        raise Invalid(
            f"The message {id} is a tombstone: it has no value to decode. Look whether its value "
            "is None first.",
            field="value",
        )
    try:
        return decoder.decode(value)
    except Invalid as exc:
        raise Invalid(f"The message {id}: {exc.message}", **exc.details) from exc
