"""Kafka's messages: a class for each, and a reader and a writer for each of its versions.

All of them are made from `definitions.json`, which Kafka publishes with its client. A class has the
fields of all versions with their defaults, in Python's spelling; the classes of its parts are its
attributes (`FetchResponse.PartitionData`). A reader leaves fields that a version lacks at their
defaults, a writer leaves them out.

    arrays, strings     length, then the elements; in flexible versions the length is a varint
    tagged fields       at the end of a structure in flexible versions; unknown ones are skipped

Invariants

* No read takes more memory than a few times the bytes of the message: lengths are held against the
  bytes that are left before anything is made, and a message has at most `ELEMENTS_MAX` elements.
* A message that cannot be read raises `Malformed`, whatever its bytes are.
"""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from tms.compat.kafka import primitives
from tms.errors import Malformed
from tms.model.message import Buffer

ELEMENTS_MAX = 100_000  # of all arrays of a message
NO_ID = bytes(16)  # the uuid of no topic
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_LAST = 1 << 15  # as the end of an open range of versions

KafkaMessage = Any  # an instance of a class that is made here
MessageReader = Callable[[bytes, int], KafkaMessage]
MessageEncoder = Callable[[KafkaMessage], list[Buffer]]


class Versions(NamedTuple):
    """A range of versions, both ends included; empty if `first` is behind `last`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """`3+`, `0-8`, `4` or `none`."""
        if text == "none":
            return cls(1, 0)
        first, dash, last = text.rstrip("+").partition("-")
        if text.endswith("+"):
            return cls(int(first), _LAST)
        return cls(int(first), int(last) if dash else int(first))


class MessageField(NamedTuple):
    """A field of a message. `parts` are the fields of a structure, also as elements of an array."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    parts: tuple["MessageField", ...]

    @property
    def element(self) -> str:
        """The type of the elements of an array; the type itself of another field."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        """True for arrays."""
        return self.type.startswith("[]")

    @property
    def is_optional(self) -> bool:
        """True if it may be null, or is left out unless it is set."""
        return any(some.first <= some.last for some in (self.nullable, self.tagged))


class Definition(NamedTuple):
    """A message: its key, its versions, the versions with tagged fields, and its fields."""

    name: str
    key: int
    versions: Versions
    flexible: Versions
    fields: tuple[MessageField, ...]


@cache
def definitions() -> dict[str, Definition]:
    """All messages, by their names such as `FetchRequest`."""
    text = files(__package__).joinpath("definitions.json").read_text()
    return {one["name"]: _definition(one) for one in json.loads(text)}


@cache
def class_of(name: str) -> Any:
    """The class of a message."""
    return _class(name, definitions()[name].fields)


@cache
def reader(name: str, version: int) -> MessageReader:
    """Reads a message of a version from bytes, beginning at an offset. Raises `Malformed`."""
    definition = definitions()[name]
    source = _Compiler(version, version in definition.flexible)
    read = source.compiled(source.reader(class_of(name), definition.fields))

    def checked(data: bytes, at: int) -> KafkaMessage:
        try:
            message, _ = read(data, at, [ELEMENTS_MAX])  # librdkafka sends bytes behind the end
        except (struct.error, IndexError, UnicodeDecodeError) as exc:
            raise Malformed(f"A {name} of version {version} cannot be read: {exc}.") from exc
        return message

    return checked


@cache
def writer(name: str, version: int) -> MessageEncoder:
    """Writes a message in a version, as chunks to send one after another."""
    definition = definitions()[name]
    source = _Compiler(version, version in definition.flexible)
    write = source.compiled(source.writer(definition.fields))

    def chunks(message: KafkaMessage) -> list[Buffer]:
        out: list[Buffer] = []
        write(out, message)
        return out

    return chunks


# -- definitions and classes -----------------------------------------------------------------------


def _definition(one: dict[str, Any]) -> Definition:
    common = {part["name"]: part["fields"] for part in one.get("commonStructs", ())}
    return Definition(
        one["name"],
        one["apiKey"],
        Versions.parse(one["validVersions"]),
        Versions.parse(one["flexibleVersions"]),
        tuple(_field(part, common) for part in one["fields"]),
    )


def _field(one: dict[str, Any], common: dict[str, Any]) -> MessageField:
    kind = one["type"]
    parts = one.get("fields") or common.get(kind.removeprefix("[]"), ())
    return MessageField(
        _spelled(one["name"]),
        kind,
        Versions.parse(one["versions"]),
        Versions.parse(one.get("nullableVersions", "none")),
        Versions.parse(one.get("taggedVersions", "none")),
        one.get("tag", -1),
        _default(kind, one.get("default")),
        tuple(_field(part, common) for part in parts),
    )


def _spelled(name: str) -> str:
    """`ThrottleTimeMs` as `throttle_time_ms`."""
    parts = ["_" + letter.lower() if letter.isupper() else letter for letter in name]
    return "".join(parts).lstrip("_")


def _default(kind: str, text: str | None) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "bool":
        return text == "true"
    if kind == "string":
        return text or ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "uuid":
        return NO_ID
    if kind not in _FIXED:
        return None  # a structure: its class makes it
    return float(text or 0) if kind == "float64" else int(str(text or 0), 0)


def _class(name: str, fields: Sequence[MessageField]) -> Any:
    parts: dict[str, Any] = {}
    given: list[Any] = []
    for field in fields:
        default = field.default
        if field.parts:
            parts[field.element] = part = _class(field.element, field.parts)
            if not (field.is_array or field.is_optional):
                default = msgspec.field(default_factory=part)
        given.append((field.name, Any, default))
    return msgspec.defstruct(name, given, namespace=parts, kw_only=True, module=__name__)


# -- reading and writing ---------------------------------------------------------------------------


class _Compiler:
    """The source of functions that read or write one version. Each structure has a function."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._names: dict[str, Any] = {**vars(primitives)}
        self._lines: list[str] = []
        self._count = 0

    def compiled(self, name: str) -> Any:
        """The function of that name."""
        exec("\n".join(self._lines), self._names)  # the source is made of names of fields only
        return self._names[name]

    def reader(self, made: Any, fields: Sequence[MessageField]) -> str:
        """The name of `(data, at, room) -> (message, end)`."""
        name = self._named("read")
        cls = self._known(made)
        body: list[str] = []
        present, tagged = self._split(fields)
        for group in _grouped(present, self.version):
            if group[0].type in _FIXED:
                targets = "".join(f"f_{one.name}, " for one in group)
                layout = _layout(group)
                body.append(f"{targets}= {self._known(layout.unpack_from)}(data, at)")
                body.append(f"at += {layout.size}")
            else:
                body += self._read(made, group[0])
        if self.flexible:
            body += self._read_tags(made, tagged)
        given = ", ".join(f"{one.name}=f_{one.name}" for one in (*present, *tagged))
        body.append(f"return {cls}({given}), at")
        self._define(f"def {name}(data, at, room):", body)
        return name

    def _read(self, made: Any, field: MessageField) -> Iterator[str]:
        """Lines that set a variable named like the field."""
        nullable = self.version in field.nullable
        start = "compact" if self.flexible else "plain"
        if field.is_array:
            yield f"count, at = {start}_count(data, at, room)"
            if not nullable:
                yield "require(count)"
            if field.parts:
                read = self.reader(getattr(made, field.element), field.parts)
                yield f"f_{field.name} = None if count is None else []"
                yield "for _ in range(count or 0):"
                yield f"    one, at = {read}(data, at, room)"
                yield f"    f_{field.name}.append(one)"
            elif field.element in _FIXED:
                letter = _FIXED[field.element]
                yield f"f_{field.name}, at = numbers(data, at, count, {letter!r})"
            else:
                size_of = self._size_of("string")
                yield f"f_{field.name}, at = strings(data, at, count, {size_of})"
        elif field.parts:
            read = self.reader(getattr(made, field.type), field.parts)
            if nullable:
                yield "there, at = data[at], at + 1"
                yield f"f_{field.name} = None"
                yield "if there == 1:"
                yield f"    f_{field.name}, at = {read}(data, at, room)"
            else:
                yield f"f_{field.name}, at = {read}(data, at, room)"
        else:
            yield f"size, at = {self._size_of(field.type)}(data, at)"
            if not nullable:
                yield "require(size)"
            read = "sized_bytes" if field.type == "bytes" else field.type
            yield f"f_{field.name}, at = {read}(data, at, size)"

    def _read_tags(self, made: Any, tagged: Sequence[MessageField]) -> Iterator[str]:
        for field in tagged:
            fresh = "[]" if field.is_array else self._known(field.default)
            yield f"f_{field.name} = {fresh}"
        yield "tags, at = varint(data, at)"
        yield "for _ in range(tags):"
        yield "    tag, at = varint(data, at)"
        yield "    size, at = varint(data, at)"
        yield "    end = at + size"
        yield "    require_left(data, end)"
        for field in tagged:
            yield f"    if tag == {field.tag}:"
            if field.type in _FIXED:
                unpack = self._known(_layout([field]).unpack_from)
                yield f"        (f_{field.name},) = {unpack}(data, at)"
            else:
                for line in self._read(made, field):
                    yield "        " + line
        yield "    at = end"

    def writer(self, fields: Sequence[MessageField]) -> str:
        """The name of `(out, message) -> None`, which appends chunks."""
        name = self._named("write")
        body: list[str] = []
        present, tagged = self._split(fields)
        for group in _grouped(present, self.version):
            if group[0].type in _FIXED:
                given = ", ".join(f"o.{one.name}" for one in group)
                body.append(f"out.append({self._known(_layout(group).pack)}({given}))")
            else:
                body += self._write(group[0])
        if self.flexible:
            body += self._write_tags(tagged)
        self._define(f"def {name}(out, o):", body or ["pass"])
        return name

    def _write(self, field: MessageField) -> Iterator[str]:
        start = "compact" if self.flexible else "plain"
        value = f"o.{field.name}"
        if field.is_array:
            yield f"out.append({start}_counted({value}))"
            if field.parts:
                write = self.writer(field.parts)
                yield f"for one in {value} or ():"
                yield f"    {write}(out, one)"
            elif field.element in _FIXED:
                yield f"out.append(pack_numbers({value} or (), {_FIXED[field.element]!r}))"
            else:
                yield f"for one in {value} or ():"
                yield f"    out.append({start}_string_sized(one))"
        elif field.parts:
            write = self.writer(field.parts)
            if self.version in field.nullable:
                yield f"out.append(b'\\xff' if {value} is None else b'\\x01')"
                yield f"if {value} is not None:"
                yield f"    {write}(out, {value})"
            else:
                yield f"{write}(out, {value})"
        elif field.type == "string":
            yield f"out.append({start}_string_sized({value}))"
        else:
            yield f"put_bytes(out, {value}, {self.flexible})"

    def _write_tags(self, tagged: Sequence[MessageField]) -> Iterator[str]:
        if not tagged:
            yield "out.append(b'\\0')"
            return
        yield "tags = []"
        for field in sorted(tagged, key=lambda one: one.tag):
            yield f"if o.{field.name} != {self._known(field.default)}:"
            yield "    whole, out = out, []"
            if field.type in _FIXED:
                pack = self._known(_layout([field]).pack)
                yield f"    out.append({pack}(o.{field.name}))"
            else:
                for line in self._write(field):
                    yield "    " + line
            yield f"    tags.append(({field.tag}, out))"
            yield "    out = whole"
        yield "put_tags(out, tags)"

    def _size_of(self, kind: str) -> str:
        """The name of the function that reads the length of a value."""
        if self.flexible:
            return "compact_size"
        return "plain_string_size" if kind == "string" else "plain_bytes_size"

    def _split(
        self, fields: Sequence[MessageField]
    ) -> tuple[list[MessageField], list[MessageField]]:
        """The fields of this version: those with a place, and those with a tag."""
        here = [one for one in fields if self.version in one.versions]
        tagged = [one for one in here if self.version in one.tagged]
        return [one for one in here if one not in tagged], tagged

    def _named(self, start: str) -> str:
        self._count += 1
        return f"{start}_{self._count}"

    def _known(self, value: Any) -> str:
        name = self._named("known")
        self._names[name] = value
        return name

    def _define(self, head: str, body: Sequence[str]) -> None:
        self._lines += [head, *("    " + line for line in body)]


def _grouped(fields: Sequence[MessageField], version: int) -> Iterator[list[MessageField]]:
    """The fields in order; neighbours of fixed size together."""
    group: list[MessageField] = []
    for field in fields:
        if field.type in _FIXED:
            group.append(field)
            continue
        if group:
            yield group
            group = []
        yield [field]
    if group:
        yield group


def _layout(fields: Sequence[MessageField]) -> struct.Struct:
    return struct.Struct(">" + "".join(_FIXED[one.type] for one in fields))
