"""Erasing over the network: what is to be erased, and how much that was."""

import binascii
from base64 import b64encode
from typing import Literal, NamedTuple

import msgspec

from tms.api.bodies import encode
from tms.errors import BadEncoding
from tms.model.ids import MessageId


class Erase(NamedTuple):
    """The messages of a key, or the one with an id, in all partitions or in one."""

    key: bytes | None
    id: MessageId | None
    partition: int | None


class EraseBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST …/erase: either a key, as text or base64, or an id with its partition."""

    key: str | None = None
    id: str | None = None
    partition: int | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def wanted(self) -> Erase:
        """What is meant. Raises `BadEncoding`, `BadMessageId`."""
        id = None if self.id is None else MessageId.parse(self.id)
        return Erase(_key(self.key, self.encoding), id, self.partition)


class ErasedBody(msgspec.Struct):
    """How many messages were erased."""

    erased: int


def erase_body(wanted: Erase) -> bytes:
    """The body that asks for this."""
    key = None if wanted.key is None else b64encode(wanted.key).decode()
    id = None if wanted.id is None else str(wanted.id)
    return encode(EraseBody(key, id, wanted.partition, "base64"))


def _key(text: str | None, encoding: str) -> bytes | None:
    if text is None or encoding == "utf-8":
        return None if text is None else text.encode()
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as exc:
        raise BadEncoding(
            f"The key says it is base64 (RFC 4648 §4, padded) but is not: {exc}."
        ) from exc
