"""Decoding by a type: the only place that makes decoders of msgspec.

What msgspec knows of a class it notes there before it has all of it. A second thread that decodes
the class meanwhile reads what is not there, and the process dies (msgspec 0.22). So one thread at a
time makes decoders; those that are made may be used by all.
"""

import os
import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """A decoder of JSON. Raises `TypeError` for what msgspec does not know."""
    found: msgspec.json.Decoder[T] = _decoder(msgspec.json.Decoder, kind)
    return found


def msgpack_decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    """A decoder of MessagePack. Raises `TypeError` for what msgspec does not know."""
    found: msgspec.msgpack.Decoder[T] = _decoder(msgspec.msgpack.Decoder, kind)
    return found


def from_json(data: "bytes | bytearray | memoryview | str", kind: type[T]) -> T:
    """The value in JSON. Raises `msgspec.DecodeError`, `UnicodeDecodeError`, `RecursionError`."""
    return json_decoder(kind).decode(data)


def from_msgpack(data: "bytes | bytearray | memoryview", kind: type[T]) -> T:
    """The value in MessagePack. Raises `msgspec.DecodeError`."""
    return msgpack_decoder(kind).decode(data)


def convert(value: object, kind: type[T], strict: bool = True, str_keys: bool = False) -> T:
    """A value of plain types as one of this type. Raises `msgspec.ValidationError`."""
    json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)


def _decoder(make: Callable[[Any], Any], kind: Any) -> Any:
    if isinstance(kind, Hashable):
        return _kept(make, kind)
    return _made(make, kind)


@lru_cache(1_000)
def _kept(make: Callable[[Any], Any], kind: Hashable) -> Any:
    return _made(make, kind)


def _made(make: Callable[[Any], Any], kind: Any) -> Any:
    with _lock:
        return make(kind)
