"""CloudEvents 1.0 in and out: JSON, batches of JSON, and HTTP headers, as messages and back.

    {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order",      header ce_id: 1 …
     "partitionkey": "ann", "datacontenttype": "application/xml",   ──────▶    key ann
     "data": "<order/>"}                                                       header content-type
                                                                               value <order/>

An event is stored as the Kafka binding of CloudEvents has it in its binary mode, so readers that
know that need nothing else: the value is the data, `content-type` its type, and each other
attribute a header with `ce_` before its name. An event without data has no value.

Invariants

* An event that breaks a rule of the specification is refused with the attribute's name, and its
  index in a batch: nothing of the batch is stored.
* Whatever is read from a topic is a valid event: a message that is none gets the attributes that
  an event has to have; a header that cannot be an attribute is left out.
* JSON data is stored byte for byte as it was sent, and goes out so.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import msgspec

from tms import block
from tms.api import bodies, routes
from tms.api.messages import NewMessage, Unpacked, base64
from tms.api.strict import decode_strict
from tms.errors import BadEncoding, Invalid, TMSError
from tms.model.ids import MessageId, utc
from tms.model.message import Buffer, Headers
from tms.model.spelling import either, shaped
from tms.model.topic import TopicName
from tms.runtime.decoding import json_decoder

VERSION = "1.0"
REQUIRED = ("specversion", "id", "source", "type")
PARTITION_KEY = "partitionkey"  # the extension that names the key
STORED_PREFIX, SENT_PREFIX = "ce_", "ce-"
SENT_REQUIRED = frozenset(f"{SENT_PREFIX}{name}".encode() for name in REQUIRED)
CONTENT_TYPE = "content-type"
MESSAGE_TYPE = "tms.message"  # of a message that was not published as an event
INTEGER_MAX = 2**31 - 1

_TEXT = r"[^\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]"
_URI = r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})"
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_PARAMETER = rf"[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|\"[^\x00-\x1f\x7f\"\\]*\")"
_DATE = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_MEDIA_TYPE = rf"{_TOKEN}/{_TOKEN}(?:{_PARAMETER})*"
_JSON_TYPE = rf"{_TOKEN}/(?:[A-Za-z0-9!#$&^_.+-]*\+)?[jJ][sS][oO][nN](?:{_PARAMETER})*"


class _Rule(NamedTuple):
    """The values of an attribute: a pattern, and its description in words."""

    pattern: "re.Pattern[str]"
    words: str

    @classmethod
    def of(cls, pattern: str, words: str) -> "_Rule":
        return cls(re.compile(pattern), words)

    @property
    def shape(self) -> dict[str, str]:
        """The schema of the attribute in a document."""
        return {"type": "string", "pattern": f"^({self.pattern.pattern})$"}


_SOME_TEXT = _Rule.of(f"{_TEXT}+", "text, not empty, without control characters")
_ANY_TEXT = _Rule.of(f"{_TEXT}*", "text without control characters")
RULES = {
    "specversion": _Rule.of(re.escape(VERSION), f"{VERSION!r}, the version that is read here"),
    "id": _SOME_TEXT,
    "source": _Rule.of(f"{_URI}+", "a URI reference, such as /shop/orders"),
    "type": _SOME_TEXT,
    "datacontenttype": _Rule.of(_MEDIA_TYPE, "a media type, such as application/json"),
    "dataschema": _Rule.of(f"[A-Za-z][A-Za-z0-9+.-]*:{_URI}+", "an absolute URI"),
    "subject": _SOME_TEXT,
    "time": _Rule.of(f"{_DATE}[Tt]{_TIME}{_ZONE}", "a time of RFC 3339: 2026-01-31T09:30:00Z"),
    PARTITION_KEY: _SOME_TEXT,
}
_NAME = re.compile("[a-z0-9]+")
_ASTRAL_NONCHARACTER = re.compile(
    "[" + "".join(chr(p << 16 | low) for p in range(1, 17) for low in (0xFFFE, 0xFFFF)) + "]"
)
_IS_JSON = re.compile(_JSON_TYPE)
_IS_TEXT = re.compile(r"text/.*|[^;]*[/+]xml\b.*", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\";\s]*)", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.|\\\Z)*)("|\Z)', re.DOTALL)  # linear, also unterminated
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

# --- what the document of the protocol says -------------------------------------------------------

_OPTIONAL_SHAPES = {
    name: {"anyOf": [rule.shape, {"type": "null"}]}
    for name, rule in RULES.items()
    if name not in REQUIRED
}
_EXTENSION = {
    "anyOf": [
        _ANY_TEXT.shape,
        {"type": "integer", "minimum": -INTEGER_MAX - 1, "maximum": INTEGER_MAX},
        {"type": "boolean"},
        {"type": "null"},
    ]
}
_JSON_SHAPE = {"type": "string", "pattern": f"^({_JSON_TYPE})$"}
CloudEvent = Annotated[
    dict[str, Any],
    shaped(
        title="CloudEvent",
        description="A CloudEvent 1.0 in its JSON format; see docs/cloudevents.md.",
        required=[*REQUIRED],
        properties={
            **{name: RULES[name].shape for name in REQUIRED},
            **_OPTIONAL_SHAPES,
            "data": {"description": "Any JSON value; text where the type is not JSON."},
            "data_base64": bodies.BASE64,
        },
        propertyNames={"pattern": "^([a-z0-9]+|data_base64)$"},
        additionalProperties=_EXTENSION,
        **either(
            {"properties": {"data": False}},
            {"properties": {"data_base64": False, "data": {"type": "string"}}},
            {
                "properties": {
                    "data_base64": False,
                    "datacontenttype": {"anyOf": [_JSON_SHAPE, {"type": "null"}]},
                }
            },
        ),
    ),
]
CloudEvents = Annotated[list[CloudEvent], shaped(maxItems=block.MESSAGES_MAX)]

# --- in -------------------------------------------------------------------------------------------

_ONE = json_decoder(dict[str, msgspec.Raw])
_MANY = json_decoder(list[dict[str, msgspec.Raw]])


def read_one(body: Buffer) -> list[NewMessage]:
    """The message of an event in JSON. Raises `BadJson`, `Invalid`, `BadEncoding`, `TooLarge`."""
    return [_from_json(decode_strict(body, _ONE))]


def read_batch(body: Buffer) -> list[NewMessage]:
    """The messages of a batch, which may be empty. Raises like `read_one`, with `index`."""
    messages = []
    batch: list[dict[str, msgspec.Raw]] = decode_strict(body, _MANY)
    for index, members in enumerate(batch):
        try:
            messages.append(_from_json(members))
        except TMSError as error:
            error.details["index"] = index
            raise
    return messages


def read_binary(headers: Mapping[bytes, bytes], body: Buffer) -> list[NewMessage]:
    """The message of an event whose attributes are HTTP headers, by their names in lower case, and
    whose data is the body: none when that is empty. Raises `Invalid`."""
    attributes: dict[str, str] = {}
    for raw_name, raw_value in headers.items():
        if not raw_name.startswith(SENT_PREFIX.encode()):
            continue
        name = raw_name.decode("latin-1").removeprefix(SENT_PREFIX)
        if name in ("datacontenttype", "data", "data_base64"):
            raise Invalid(
                f"There is no header {SENT_PREFIX}{name} in a CloudEvent: Content-Type says what "
                "the data is, and the body has it.",
                field=name,
            )
        attributes[name] = _checked(name, _header_text(name, raw_value))
    content_type = headers.get(b"content-type", b"").decode("latin-1").strip()
    if content_type:
        attributes["datacontenttype"] = _checked("datacontenttype", content_type)
    return [_message(attributes, bytes(body) if len(body) else None)]


def sent_attributes(headers: Mapping[bytes, bytes]) -> bytes:
    """The headers of an event, as its repetition has them too."""
    sent = ((k, v) for k, v in headers.items() if k.startswith(b"ce-") or k == b"content-type")
    return repr(sorted(sent)).encode()


def _from_json(members: dict[str, msgspec.Raw]) -> NewMessage:
    data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
    attributes: dict[str, str] = {}
    for name, raw in members.items():
        value = msgspec.json.decode(raw)
        if value is None:  # as if it were left out
            _check_name(name)
        else:
            attributes[name] = _checked(name, _attribute_text(name, value))
    if data is None and data_base64 is None:
        return _message(attributes, None)
    if data is not None and data_base64 is not None:
        raise Invalid("A CloudEvent has either data or data_base64, not both.", field="data")
    if data is None:
        assert data_base64 is not None, "one of them is there"
        return _message(attributes, _from_base64(data_base64))
    content_type = attributes.setdefault("datacontenttype", routes.JSON)
    if _IS_JSON.fullmatch(content_type):
        return _message(attributes, bytes(data))
    return _message(attributes, _text_data(msgspec.json.decode(data), content_type))


def _attribute_text(name: str, value: object) -> str:
    """The canonical text of an attribute in JSON. Raises `Invalid`."""
    if isinstance(value, str):
        return value
    if name not in RULES:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
            return str(value)
        raise Invalid(
            f"The attribute {name[:64]!r} of a CloudEvent is text, true, false or a whole number "
            f"of 32 bits, got {value!r:.80}. Structured values belong into data.",
            field=name[:64],
        )
    raise Invalid(
        f"The attribute {name!r} of a CloudEvent is {RULES[name].words}, got {value!r:.80}.",
        field=name,
    )


def _check_name(name: str) -> None:
    """Raises `Invalid`."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            "The name of an attribute of a CloudEvent has small letters and digits only, got "
            f"{name[:64]!r}.",
            field=name[:64],
        )


def _checked(name: str, text: str) -> str:
    """The text of an attribute. Raises `Invalid`."""
    _check_name(name)
    rule = RULES.get(name, _ANY_TEXT)
    if not rule.pattern.fullmatch(text) or _ASTRAL_NONCHARACTER.search(text):
        raise Invalid(
            f"The attribute {name[:64]!r} of a CloudEvent is {rule.words}, got {text[:80]!r}.",
            field=name[:64],
        )
    return text


def _header_text(name: str, raw: bytes) -> str:
    """The value of an HTTP header: quoted strings, then percent-encoding undone once. Raises
    `Invalid`."""
    text = _QUOTED.sub(_unquoted, raw.decode("latin-1").strip())
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError as exc:
        raise Invalid(
            f"The header {SENT_PREFIX}{name[:64]} is percent-encoded UTF-8, got {raw[:80]!r}.",
            field=name[:64],
        ) from exc


def _unquoted(found: "re.Match[str]") -> str:
    return _ESCAPED.sub(r"\1", found[1]) if found[2] else found[0]


def _from_base64(raw: msgspec.Raw) -> bytes:
    text = msgspec.json.decode(raw)
    if not isinstance(text, str):
        raise Invalid(
            f"The member data_base64 of a CloudEvent is text, got {text!r:.80}.",
            field="data_base64",
        )
    try:
        return base64(text)
    except BadEncoding as exc:
        raise BadEncoding(f"data_base64: {exc.message}", field="data_base64") from exc


def _text_data(value: object, content_type: str) -> bytes:
    if not isinstance(value, str):
        raise Invalid(
            f"The data of a CloudEvent is text where datacontenttype is {content_type[:80]!r}, got "
            f"{value!r:.80}. Send bytes as data_base64, or JSON with a type of JSON.",
            field="data",
        )
    if not _is_utf8(content_type):
        raise Invalid(
            f"The data of a CloudEvent is stored as UTF-8, but datacontenttype is "
            f"{content_type[:80]!r}. Send data_base64.",
            field="datacontenttype",
        )
    return value.encode()


def _message(attributes: Mapping[str, str], data: bytes | None) -> NewMessage:
    """The message of an event. Raises `Invalid` when it lacks an attribute."""
    if missing := [name for name in REQUIRED if name not in attributes]:
        raise Invalid(
            f"A CloudEvent has the attributes {', '.join(REQUIRED)}; this one lacks "
            f"{', '.join(missing)}.",
            field=missing[0],
        )
    headers = {
        CONTENT_TYPE if name == "datacontenttype" else STORED_PREFIX + name: text.encode()
        for name, text in attributes.items()
    }
    key = attributes.get(PARTITION_KEY)
    return NewMessage(data, None if key is None else key.encode(), headers, None)


# --- out ------------------------------------------------------------------------------------------


def as_batch(name: TopicName, answer: Unpacked) -> bytes:
    """The messages of a fetch as a batch of events."""
    parts = block.unpacked(run.columns for run in answer.runs)
    topic = f"{routes.PREFIX}/{quote(name.namespace)}/topics/{quote(name.topic)}"
    events = []
    for run, columns in zip(answer.runs, parts, strict=True):
        source = f"{topic}/partitions/{run.partition}"
        cells = zip(run.ids(), columns.keys(), columns.values(), columns.headers(), strict=True)
        for id, key, value, headers in cells:
            attributes = _event(headers) or _of_message(source, id, key, headers)
            events.append(attributes | _data(attributes.get("datacontenttype"), value))
    return bodies.encode(events)


def _event(headers: Headers) -> dict[str, Any] | None:
    """The attributes of a message that was published as an event; None of any other."""
    attributes: dict[str, Any] = {}
    for header, cell in headers.items():
        if header.startswith(STORED_PREFIX):
            name = header.removeprefix(STORED_PREFIX)
        elif header == CONTENT_TYPE:
            name = "datacontenttype"
        else:
            continue
        text = None if cell is None else _valid(name, cell)
        if text is not None:
            attributes[name] = text
    return attributes if attributes.keys() >= {*REQUIRED} else None


def _of_message(source: str, id: MessageId, key: bytes | None, headers: Headers) -> dict[str, Any]:
    """The attributes of a message that is no event."""
    time = utc(id.time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    attributes: dict[str, Any] = {
        "specversion": VERSION,
        "id": str(id),
        "source": source,
        "type": MESSAGE_TYPE,
        "time": time,
    }
    optional = ((PARTITION_KEY, key), ("datacontenttype", headers.get(CONTENT_TYPE)))
    for name, cell in optional:
        if cell is not None and (text := _valid(name, cell)) is not None:
            attributes[name] = text
    return attributes


def _valid(name: str, cell: bytes) -> str | None:
    """The text of an attribute, None of what cannot be one."""
    try:
        return _checked(name, cell.decode()) if name != "data" else None
    except (Invalid, UnicodeDecodeError):
        return None


def _data(content_type: str | None, value: bytes | None) -> dict[str, Any]:
    """The member that has the data."""
    if value is None:
        return {}
    if content_type is None or _IS_JSON.fullmatch(content_type):
        if _is_json(value):
            return {"data": msgspec.Raw(value)}
    elif _IS_TEXT.fullmatch(content_type) and _is_utf8(content_type):
        try:
            return {"data": value.decode()}
        except UnicodeDecodeError:
            pass
    return {"data_base64": b64encode(value).decode()}


def _is_utf8(content_type: str) -> bool:
    charset = _CHARSET.search(content_type)
    return charset is None or charset[1].lower() in ("utf-8", "us-ascii", "")


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
