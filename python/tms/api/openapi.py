"""The OpenAPI 3.1 document of the service, made from the table of operations."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from tms.api import routes
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS
from tms.errors import (
    Conflict,
    Forbidden,
    Invalid,
    Malformed,
    NotAcceptable,
    NotFound,
    Overloaded,
    SlowRequest,
    StorageFull,
    StorageUnavailable,
    TMSError,
    TooLarge,
    UnsupportedMedia,
)

_ANY = (Malformed, Invalid, NotAcceptable, SlowRequest, Overloaded)
_OF_BODIES = (TooLarge, UnsupportedMedia)
_OF_CHANGES = (Forbidden, Conflict, StorageFull, StorageUnavailable)
_PUBLIC = [one for one in OPERATIONS.values() if one.on is not Resource.INSTANCE]
_BYTES = {"type": "string", "contentMediaType": "application/octet-stream"}
_TEMPLATE = "#/components/schemas/{name}"
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "JSON with the same key and body is stored once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


@cache
def document(version: str) -> dict[str, Any]:
    """The document."""
    types = dict.fromkeys(_types(_PUBLIC))
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    components["MessageIn"]["properties"]["json"] = {"description": "Any JSON value."}
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in _PUBLIC:
        page = paths.setdefault(operation.path, {"parameters": _in_path(operation)})
        page[operation.method.lower()] = _page(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TMS",
            "version": version,
            "description": "An ordered, immutable message log. See docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(operations: Iterable[Operation]) -> Iterable[Any]:
    yield routes.ProblemBody
    for operation in operations:
        for sent in (*operation.form.body.values(), *operation.form.answer.values()):
            yield from (type for type in _alternatives(sent) if type is not bytes)


def _alternatives(sent: Any) -> tuple[Any, ...]:
    return sent if isinstance(sent, tuple) else (sent,)


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(type)}
        for name, type in operation.path_fields()
    ]


def _page(operation: Operation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    form = operation.form
    page: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    parameters = [] if form.query is None else list(_in_query(form.query))
    if form.idempotency_key:
        parameters.append(_IDEMPOTENCY_KEY)
    if parameters:
        page["parameters"] = parameters
    if form.body:
        page["requestBody"] = {"required": True, "content": _content(form.body, schema_of)}
    answer: dict[str, Any] = {"description": operation.summary}
    if form.answer:
        answer["content"] = _content(form.answer, schema_of)
    if form.answer_headers:
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in form.answer_headers.items()
        }
    page["responses"] = {str(status): answer for status in operation.statuses}
    problem = {"content": {routes.PROBLEM: {"schema": schema_of[routes.ProblemBody]}}}
    for error in _errors(operation):
        text = (error.__doc__ or "").partition("\n")[0]
        page["responses"].setdefault(
            str(routes.STATUS[error.kind]), {"description": text, **problem}
        )
    page["responses"]["default"] = {"description": "Any other error.", **problem}
    return page


def _content(bodies: Mapping[str, Any], schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    content = {}
    for media, sent in bodies.items():
        some = [_BYTES if type is bytes else schema_of[type] for type in _alternatives(sent)]
        content[media] = {"schema": {"anyOf": some} if len(some) > 1 else some[0]}
    return content


def _in_query(query: type[msgspec.Struct]) -> Iterable[dict[str, Any]]:
    schema = msgspec.json.schema(query)["$defs"][query.__name__]
    for name, of_field in schema["properties"].items():
        some = [choice for choice in of_field.get("anyOf", ()) if choice != {"type": "null"}]
        of_field = some[0] if len(some) == 1 else of_field
        parameter = {"name": name, "in": "query", "schema": of_field}
        if "description" in of_field:
            parameter["description"] = of_field.pop("description")
        if of_field.get("default", 0) is None:
            del of_field["default"]
        if name in schema.get("required", ()):
            parameter["required"] = True
        yield parameter


def _errors(operation: Operation) -> Iterable[type[TMSError]]:
    if operation.on is Resource.SERVICE:
        return
    yield from _ANY
    if operation.form.body:
        yield from _OF_BODIES
    if operation.on is not Resource.NAMESPACE:
        yield NotFound
    if operation.method != "GET":
        yield from _OF_CHANGES
