"""Decoding by a type: the only place that makes decoders of msgspec.

While msgspec makes a decoder for a class, it stores incomplete facts on the class. A second thread
that decodes the class meanwhile reads them, and the process dies (msgspec 0.22). So one thread at a
time makes decoders; any thread may use a complete one.
"""

import os
import threading
from functools import lru_cache
from typing import Protocol, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class _JsonDecoders(Protocol):
    def __call__(self, kind: type[T], /) -> "msgspec.json.Decoder[T]": ...


class _MsgpackDecoders(Protocol):
    def __call__(self, kind: type[T], /) -> "msgspec.msgpack.Decoder[T]": ...


def make_json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """A decoder of JSON. Raises `TypeError` for a type that msgspec does not support."""
    with _lock:
        return msgspec.json.Decoder(kind)


def make_msgpack_decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    """A decoder of MessagePack. Raises `TypeError` for a type that msgspec does not support."""
    with _lock:
        return msgspec.msgpack.Decoder(kind)


# Cached, and found without a call of Python. They also raise `TypeError` for a type without a hash,
# which a user's type may be.
json_decoder: _JsonDecoders = lru_cache(1_000)(make_json_decoder)  # type: ignore[assignment]
msgpack_decoder: _MsgpackDecoders = lru_cache(1_000)(make_msgpack_decoder)  # type: ignore[assignment]


def from_json(data: "bytes | bytearray | memoryview | str", kind: type[T]) -> T:
    """The value in JSON. Raises `msgspec.DecodeError`, `UnicodeDecodeError`, `RecursionError`."""
    try:
        decoder = json_decoder(kind)
    except TypeError:  # the type has no hash
        decoder = make_json_decoder(kind)
    return decoder.decode(data)


def from_msgpack(data: "bytes | bytearray | memoryview", kind: type[T]) -> T:
    """The value in MessagePack. Raises `msgspec.DecodeError`."""
    return msgpack_decoder(kind).decode(data)


def convert(value: object, kind: type[T], strict: bool = True, str_keys: bool = False) -> T:
    """A value of plain types converted to this type. Raises `msgspec.ValidationError`."""
    json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)
