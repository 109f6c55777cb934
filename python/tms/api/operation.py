"""Operations and their declarations.

    class QueuesApi(Protocol):
        @post("{topic}/queues/{group}/extend", on=Resource.QUEUE, access=Access.CONSUME)
        def extend(self, topic: TopicName, group: GroupName, tokens: Tokens, …) -> TokenResult: …

A declaration is read once, as an `Operation`. From it come the port that engine and client have
(the protocol itself), the route, the strict body, the HTTP client, the page of the OpenAPI
document, and the labels of metrics and logs.

* Parameters named in the path are part of the path; a `TopicName` fills the places of its namespace
  and its topic. GET and DELETE have all other parameters in the query, the other methods in a JSON
  body.
* `Annotated[…, Codec(…)]` gives the encoded form of a value that JSON does not have.
* An operation with a `Form` has a body of bytes, or is fast: its query, body and answer are
  declared as they are sent, and service and client each have a function for it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from functools import cache, lru_cache, partial, wraps
from inspect import Parameter, getdoc, signature
from operator import itemgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote

import msgspec

from tms.api import routes
from tms.errors import Invalid, TMSError
from tms.model.access import Access
from tms.model.delayed import DELAYED_ID, DelayedId
from tms.model.ids import MESSAGE_ID, MessageId
from tms.model.position import POSITION, Position
from tms.model.spelling import shaped, spelled
from tms.model.topic import NAMESPACE, TOPIC_NAME, TopicName
from tms.model.topic import TOPIC as TOPIC_PATTERN
from tms.runtime.decoding import convert

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=Callable[..., Any])

BODY_BYTES_MAX = 64 << 10  # unless the operation declares another limit


class Resource(Enum):
    """The kind of resource that an operation concerns."""

    SERVICE = "service"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    GROUP = "group"
    QUEUE = "queue"
    TRANSACTIONS = "transactions"
    CLUSTER = "cluster"
    ACCESS = "access"
    INSTANCE = "instance"  # asked by other instances only


class Repeat(Enum):
    """The condition on which a client repeats a request by itself that may have been carried
    out."""

    SAFE = "safe"  # a repetition changes nothing
    UNTIL_GONE = "until gone"  # nor does it here, but it finds nothing any more
    UNSAFE = "unsafe"
    NEVER = "never"  # not even one that surely was not carried out: the caller repeats it


def _same(value: Any) -> Any:
    return value


class Codec(NamedTuple, Generic[T]):
    """The encoded form of a value: a value of type `shape`, which JSON has."""

    shape: Any
    decode: Callable[[Any], T] = _same
    encode: Callable[[T], Any] = _same


class Named(NamedTuple):
    """Annotates a result that is the only field, `name`, of an object; `item` is the field's type
    if that is not the annotated one."""

    title: str
    doc: str
    name: str
    item: Any = None


class WholeBody:
    """Annotates the parameter that is the whole body."""


class DeclaredOnly(NotImplementedError):
    """A declaration was called: implementations of the port have the code."""


class NotSent:
    """Annotates a parameter that concerns the caller's side only: how long it waits."""


class Caller:
    """Annotates a parameter that the service fills in: the name of the caller."""


class ShownCredential:
    """Annotates a parameter that the service fills in: the credential that the caller showed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The query, and the bodies and answers by media type. `query_shape` is what a schema says of
    the parameters together."""

    path: Mapping[str, Any] = dataclass_field(default_factory=dict)
    query: type[msgspec.Struct] | None = None
    query_shape: Mapping[str, Any] = dataclass_field(default_factory=dict)
    body: Mapping[str, Any] = dataclass_field(default_factory=dict)
    answer: Mapping[str, Any] = dataclass_field(default_factory=dict)
    idempotency_key: bool = False
    answer_headers: Mapping[str, str] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of a decorator such as `get`."""

    method: str
    path: str
    on: Resource
    access: Access
    repeat: Repeat | Callable[[Mapping[str, Any]], Repeat] = Repeat.SAFE
    statuses: tuple[int, ...] = (routes.OK,)
    body_bytes_max: int = BODY_BYTES_MAX
    name: str = ""  # in place of that of protocol and method
    timeout_s: float = 0  # of its only attempt, if no parameter says it
    alone: bool = False  # it takes long, or much memory: one at a time
    form: Form | None = None
    lists: Resource | None = None  # the resources listed; a caller sees those that it may
    body_shape: Mapping[str, Any] | None = None  # of its schema, beside its fields
    errors: tuple[type[TMSError], ...] = ()  # besides those that all have


def _declared(
    method: str, path: str, on: Resource, access: Access, **more: Any
) -> Callable[[F], F]:
    """A decorator that says how a method of a protocol is sent; see `Declaration`."""

    def declare(function: F) -> F:
        @wraps(function)
        def declared(*_: Any, **__: Any) -> NoReturn:
            raise DeclaredOnly(function.__qualname__)

        declared.__declaration__ = Declaration(method, path, on, access, **more)  # type: ignore[attr-defined]
        return cast(F, declared)

    return declare


get, put, post = (partial(_declared, method) for method in ("GET", "PUT", "POST"))
patch, delete = (partial(_declared, method) for method in ("PATCH", "DELETE"))


class Field(NamedTuple):
    """A parameter in its encoded form."""

    name: str
    codec: Codec[Any]
    default: Any

    def encoded(self, arguments: Mapping[str, Any]) -> Any:
        """The parameter's encoded value; None stays None."""
        value = arguments.get(self.name, self.default)
        return None if value is None else self.codec.encode(value)

    def decoded(self, sent: Any) -> Any:
        """The parameter from its encoded value."""
        return None if sent is None else self.codec.decode(sent)


class Operation:
    """A declared operation.

    `name` is unique, such as `queues.extend`; `path` is what OpenAPI calls it; `form` is
    all that is sent. The arguments of a call are `given` by their names.
    """

    def __init__(self, api: str, function: Callable[..., Any]) -> None:
        declared: Declaration = function.__declaration__  # type: ignore[attr-defined]
        self.api, self.function = api, function.__name__
        self.name = declared.name or f"{api}.{self.function}"
        self.timeout_s = declared.timeout_s
        self.summary = " ".join((getdoc(function) or "").partition("\n\n")[0].split())
        self.method, self.on, self.access = declared.method, declared.on, declared.access
        self.repeat, self.alone, self.errors = declared.repeat, declared.alone, declared.errors
        self.lists = declared.lists
        self.body_bytes_max, self.by_hand = declared.body_bytes_max, declared.form is not None
        hints = get_type_hints(function, include_extras=True)
        arguments = [*signature(function).parameters.values()][1:]
        self._defaults = {
            parameter.name: parameter.default
            for parameter in arguments
            if parameter.default is not Parameter.empty
        }
        self._positional = [
            parameter.name
            for parameter in arguments
            if parameter.kind is not Parameter.KEYWORD_ONLY
        ]
        more = declared.form.path if declared.form is not None else {}
        fields = {name: Field(name, codec_of(hint), Parameter.empty) for name, hint in more.items()}
        fields |= {
            parameter.name: Field(
                parameter.name, codec_of(hints[parameter.name]), parameter.default
            )
            for parameter in arguments
            if not {NotSent, Caller, ShownCredential} & {*_marks(hints[parameter.name])}
        }
        self.caller = next((name for name in hints if Caller in _marks(hints[name])), None)
        self.shown = next((name for name in hints if ShownCredential in _marks(hints[name])), None)
        self._in_path = [fields.pop(name) for name in _names_in(declared.path) if name in fields]
        self.place_of = _place_of([field.name for field in self._in_path])
        whole = [parameter.name for parameter in arguments if _is_whole(hints[parameter.name])]
        self._whole = fields.pop(whole[0]) if whole else None
        self._fields = tuple(fields.values())
        self.path = _full_path(declared.path, self._in_path)
        self.answer = None if hints["return"] is NoneType else codec_of(hints["return"])
        self._struct: Callable[..., Any] | None = None  # of the body, where that is made of them
        self.form = declared.form or self._form(declared.body_shape)
        self.statuses = declared.statuses if self.form.answer else (routes.NO_CONTENT,)

    def _form(self, body_shape: Mapping[str, Any] | None) -> Form:
        answer = {} if self.answer is None else {routes.JSON: self.answer.shape}
        if self._whole is not None:
            return Form(body={routes.JSON: self._whole.codec.shape}, answer=answer)
        if not self._fields:
            return Form(answer=answer)
        title = "".join(part.capitalize() for part in self.name.replace("_", ".").split("."))
        struct = _struct(title, self._fields)
        if self.method in ("GET", "DELETE"):
            return Form(query=struct, answer=answer)
        self._struct = struct
        shape = struct if body_shape is None else Annotated[struct, shaped(**body_shape)]
        return Form(body={routes.JSON: shape}, answer=answer)

    @property
    def sent(self) -> dict[str, Field]:
        """The arguments that are sent, by name."""
        whole = [] if self._whole is None else [self._whole]
        return {field.name: field for field in (*self._in_path, *whole, *self._fields)}

    @property
    def required(self) -> list[str]:
        """The names of the parameters without a default."""
        return [name for name, field in self.sent.items() if field.default is Parameter.empty]

    def path_fields(self) -> Iterator[tuple[str, Any]]:
        """The variable parts of the path: their names and types."""
        for field in self._in_path:
            if field.codec is TOPIC:
                yield from (("namespace", NAMESPACE_TEXT), ("topic", TOPIC_TEXT))
            else:
                yield field.name, field.codec.shape

    # --- the side that asks -----------------------------------------------------------------------

    def bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by their names, with the defaults of the others."""
        if len(args) > len(self._positional):
            raise TypeError(f"{self.name} takes {len(self._positional)} arguments, not {len(args)}")
        return {**self._defaults, **dict(zip(self._positional, args, strict=False)), **named}

    def placed(self, place: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments in the path of a request, from what `place_of` gave."""
        return {field.name: value for field, value in zip(self._in_path, place, strict=True)}

    def target(self, arguments: Mapping[str, Any]) -> str:
        """Path and query of a request. For an operation with a `Form` the arguments are encoded
        already."""
        path = self.path
        for field in self._in_path:
            value = arguments[field.name]
            if field.codec is TOPIC:
                path = path.replace("{namespace}/topics/{topic}", _topic_path(value))
            else:
                path = path.replace(
                    f"{{{field.name}}}", quote(str(field.codec.encode(value)), safe="")
                )
        if self.form.query is None:
            return path
        if self.by_hand:
            sent = [(name, arguments.get(name)) for name in self.form.query.__struct_fields__]
        else:
            sent = [(field.name, field.encoded(arguments)) for field in self._fields]
        query = "&".join([f"{name}={quote(str(v), ':,')}" for name, v in sent if v is not None])
        return f"{path}?{query}" if query else path

    def body(self, arguments: Mapping[str, Any]) -> bytes | None:
        """The body of a request; None when it has none."""
        if self._whole is not None:
            return msgspec.json.encode(self._whole.encoded(arguments))
        if self._struct is None:
            return None
        encoded: list[Any] = []
        for name, codec, default in self._fields:
            value = arguments.get(name, default)
            encoded.append(None if value is None else codec.encode(value))
        return msgspec.json.encode(self._struct(*encoded))

    # --- the side that answers --------------------------------------------------------------------

    def in_path(self, texts: Sequence[str]) -> dict[str, Any]:
        """The arguments in a path, from what varies in it. Raises `Invalid`."""
        texts_left = iter(texts)
        return {
            field.name: TopicName.of(next(texts_left), next(texts_left))
            if field.codec is TOPIC
            else field.codec.decode(next(texts_left))
            for field in self._in_path
        }

    def in_query(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The arguments in a query. Raises `Invalid`."""
        if self.form.query is None:
            return {}
        query = read_query(texts, self.form.query)
        return {
            field.name: field.decoded(getattr(query, field.name))
            for field in self._fields
            if field.name in texts
        }

    def in_body(self, body: Any) -> dict[str, Any]:
        """The arguments in a body. Raises `Invalid`."""
        if self.by_hand:
            return {"body": body}
        if self._whole is not None:
            return {self._whole.name: self._whole.decoded(body)}
        arguments: dict[str, Any] = {}
        for name, codec, _ in self._fields:
            sent = getattr(body, name)
            arguments[name] = None if sent is None else codec.decode(sent)
        return arguments


def operations_of(api: type, name: str) -> list[Operation]:
    """The operations that a protocol declares."""
    return [
        Operation(name, function)
        for function in vars(api).values()
        if hasattr(function, "__declaration__")
    ]


def read_query(texts: Mapping[str, str], query: type[S]) -> S:
    """A query as its struct. Raises `Invalid`."""
    for name in _whole_numbers(query) & texts.keys():
        if not (texts[name].isascii() and texts[name].isdigit()):
            raise Invalid(
                f"The parameter {name} is a whole number, got {texts[name][:40]!r}.", field=name
            )
    try:
        return convert(texts, query, strict=False)
    except msgspec.ValidationError as exc:
        problem, _, name = str(exc).rstrip("`").partition(" - at `$.")
        got = f", got {texts[name][:40]!r}" if name in texts else ""
        raise Invalid(f"The parameter {name}: {problem}{got}.", field=name) from exc


def codec_of(hint: Any) -> Codec[Any]:
    """The codec of values of this type."""
    if isinstance(hint, Codec):
        return hint
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        metas = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
        codec = next((mark for mark in marks if isinstance(mark, Codec)), None) or codec_of(inner)
        for mark in marks:
            codec = _in_object(mark, inner) if isinstance(mark, Named) else codec
        for meta in metas:
            codec = codec._replace(shape=Annotated[codec.shape, meta])
        return codec
    if get_origin(hint) in (Union, UnionType):
        some = [choice for choice in get_args(hint) if choice is not NoneType]
        if len(some) == 1 and (codec := codec_of(some[0])).decode is not _same:
            return codec._replace(shape=codec.shape | None)
    return _CODECS.get(hint, Codec(hint))


@cache  # a schema has each type once
def _in_object(named: Named, plain: Any) -> Codec[Any]:
    inner = codec_of(plain if named.item is None else named.item)
    shape = msgspec.defstruct(
        named.title, [(named.name, inner.shape)], namespace={"__doc__": named.doc}
    )
    return Codec(
        shape,
        lambda sent: inner.decode(getattr(sent, named.name)),
        lambda value: shape(inner.encode(value)),
    )


def list_of(codec: Codec[Any]) -> Codec[Any]:
    """Values one after another."""
    return Codec(
        list[codec.shape],  # type: ignore[name-defined]
        lambda sent: [codec.decode(item) for item in sent],
        lambda values: [codec.encode(item) for item in values],
    )


TOPIC: Codec[TopicName] = Codec(Annotated[str, spelled(TOPIC_NAME)], TopicName.parse, str)
NAMESPACE_TEXT = Annotated[str, spelled(NAMESPACE)]
TOPIC_TEXT = Annotated[str, spelled(TOPIC_PATTERN)]
POSITION_TEXT = Annotated[str, spelled(POSITION)]
MESSAGE_ID_TEXT = Annotated[str, spelled(MESSAGE_ID)]
_CODECS: dict[Any, Codec[Any]] = {
    TopicName: TOPIC,
    Position: Codec(POSITION_TEXT, Position.parse, str),
    MessageId: Codec(MESSAGE_ID_TEXT, MessageId.parse, str),
    DelayedId: Codec(Annotated[str, spelled(DELAYED_ID)], DelayedId.parse, str),
}


def _marks(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _is_whole(hint: Any) -> bool:
    return WholeBody in _marks(hint)


@lru_cache(1_024)
def _topic_path(name: TopicName) -> str:
    return f"{quote(name.namespace, safe='')}/topics/{quote(name.topic, safe='')}"


def _place_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that gives the arguments of these names; `itemgetter` takes no Python call."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda arguments: tuple(arguments[name] for name in names)


def _names_in(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _full_path(path: str, fields: Sequence[Field]) -> str:
    for field in fields:
        if field.codec is TOPIC:
            path = path.replace(f"{{{field.name}}}", "namespaces/{namespace}/topics/{topic}")
    return path if path.startswith("/") else f"{routes.ROOT}/{path}"


@cache
def _whole_numbers(query: type[msgspec.Struct]) -> frozenset[str]:
    schema = msgspec.json.schema(query)["$defs"][query.__name__]
    return frozenset(
        name
        for name, field in schema["properties"].items()
        if any(choice.get("type") == "integer" for choice in field.get("anyOf", (field,)))
    )


def _struct(title: str, fields: Sequence[Field]) -> type[msgspec.Struct]:
    """A struct with these fields; it forbids all others."""
    return msgspec.defstruct(
        title,
        [
            (field.name, field.codec.shape)
            if field.default is Parameter.empty
            else (field.name, field.codec.shape, field.encoded({}))
            for field in fields
        ],
        forbid_unknown_fields=True,
        omit_defaults=True,
    )
