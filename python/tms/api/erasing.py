"""Erasing over the network: what is to be erased, and how much that was."""

from base64 import b64encode
from typing import Annotated, Literal

import msgspec

from tms.api.bodies import BASE64, encode
from tms.api.messages import base64
from tms.api.operation import MESSAGE_ID_TEXT
from tms.api.parameters import Partition
from tms.model.ids import MessageId
from tms.model.spelling import either, shaped


class EraseBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST …/erase: either a key, as text or base64, or an id with its partition."""

    key: str | None = None
    id: MESSAGE_ID_TEXT | None = None
    partition: Partition | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def wanted(self) -> tuple[bytes | None, MessageId | None, int | None]:
        """Key, id and partition. Raises `BadEncoding`, `BadMessageId`."""
        id = None if self.id is None else MessageId.parse(self.id)
        raw = base64 if self.encoding == "base64" else str.encode
        return None if self.key is None else raw(self.key), id, self.partition


_UTF8, _NONE = {"enum": ["utf-8"]}, {"type": "null"}
_KEY = {"required": ["key"]}
ERASE = Annotated[
    EraseBody,
    shaped(
        **either(
            {**_KEY, "properties": {"key": {"type": "string"}, "id": _NONE, "encoding": _UTF8}},
            {
                "required": ["key", "encoding"],
                "properties": {"key": BASE64, "id": _NONE, "encoding": {"enum": ["base64"]}},
            },
            {
                "required": ["id", "partition"],
                "properties": {
                    "key": _NONE,
                    "id": {"type": "string"},
                    "partition": {"type": "integer"},
                },
            },
        )
    ),
]


class ErasedBody(msgspec.Struct):
    """The number of erased messages."""

    erased: int


def erase_body(key: bytes | None, id: MessageId | None, partition: int | None) -> bytes:
    """The body that erases the messages of a key, or the one with an id."""
    text = None if key is None else b64encode(key).decode()
    return encode(EraseBody(text, None if id is None else str(id), partition, "base64"))
