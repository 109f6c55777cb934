"""The OpenAPI 3.1 document of the service, made from the table of operations.

* Bounds and patterns come from the types that the service reads, so the service refuses no request
  for its form that fits the document. Refusals that depend on the state of the service, or on
  other requests, have one of the statuses listed with each operation.
* In the document of a guarded service every operation that needs a token says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from tms.api import routes
from tms.api.operation import Form, Operation, Resource
from tms.api.operations import OPERATIONS
from tms.api.parameters import KEY_CHARS_MAX, UNSHOWN_KEY
from tms.errors import (
    Conflict,
    DataCorrupt,
    Forbidden,
    Invalid,
    Malformed,
    NotAcceptable,
    NotFound,
    Overloaded,
    SlowRequest,
    StorageFull,
    StorageUnavailable,
    TimedOut,
    TMSError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMedia,
)
from tms.model.access import Access

_ANY = (NotAcceptable, routes.UriTooLong, routes.HeadersTooLarge, Overloaded, Unavailable)
_OF_ENGINE = (Malformed, Invalid, SlowRequest, DataCorrupt, StorageUnavailable, TimedOut)
_OF_BODIES = (TooLarge, UnsupportedMedia)
_OF_CHANGES = (Forbidden, Conflict, StorageFull)
_GUARDED = (Unauthenticated, Forbidden)
_BEARER, _CERTIFICATE = "bearer", "certificate"
_SCHEMES = {
    _BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `tms token create`; see docs/security.md.",
    },
    _CERTIFICATE: {
        "type": "mutualTLS",
        "description": "A client certificate whose name is the principal, if the service asks.",
    },
}
_PUBLIC = [one for one in OPERATIONS.values() if one.on is not Resource.INSTANCE]
_BYTES = {"type": "string", "contentMediaType": "application/octet-stream"}
_TEMPLATE = "#/components/schemas/{name}"
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "JSON or CloudEvents with the same key and body are stored once.",
    "schema": {
        "type": "string",
        "pattern": f"^[!-~]([ -~]{{0,{KEY_CHARS_MAX - 2}}}[!-~])?$",
    },
}


class _Schemas:
    """The schemas of types and of the types they refer to. Queries are not components: their fields
    are parameters."""

    def __init__(self, types: Sequence[Any]) -> None:
        found, self.components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
        self.components["MessageIn"]["properties"]["json"] = {"description": "Any JSON value."}
        self._found = dict(zip(map(id, types), found, strict=True))
        names = {one.form.query.__name__ for one in _PUBLIC if one.form.query is not None}
        self._queries = {name: self.components.pop(name) for name in names}

    def of(self, type: Any) -> dict[str, Any]:
        """The schema of a type."""
        found: dict[str, Any] = self._found[id(type)]
        return found

    def of_query(self, query: type[msgspec.Struct]) -> dict[str, Any]:
        """The schema of a query."""
        found: dict[str, Any] = self._queries[query.__name__]
        return found


@cache
def document(version: str, guarded: bool = True) -> dict[str, Any]:
    """The document of a service that is `guarded`, or of one without authentication."""
    schemas = _Schemas([*_types(_PUBLIC)])
    paths: dict[str, dict[str, Any]] = {}
    for operation in _PUBLIC:
        page = paths.setdefault(operation.path, {"parameters": _in_path(operation)})
        page[operation.method.lower()] = _page(operation, schemas, guarded)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TMS",
            "version": version,
            "description": "An ordered, immutable message log. See docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            **({"securitySchemes": _SCHEMES} if guarded else {}),
        },
    }


def _types(operations: Iterable[Operation]) -> Iterable[Any]:
    yield routes.ProblemBody
    for operation in operations:
        if operation.form.query is not None:
            yield operation.form.query
        for sent in (*operation.form.body.values(), *operation.form.answer.values()):
            yield from (type for type in _alternatives(sent) if type is not bytes)


def _alternatives(sent: Any) -> tuple[Any, ...]:
    return sent if isinstance(sent, tuple) else (sent,)


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(type)}
        for name, type in operation.path_fields()
    ]


def _page(operation: Operation, schemas: _Schemas, guarded: bool) -> dict[str, Any]:
    form = operation.form
    page: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if guarded:
        asked = operation.access is not Access.OPEN
        page["security"] = [{_BEARER: []}, {_CERTIFICATE: []}] if asked else []
    parameters = [*_in_query(form, schemas)]
    if form.idempotency_key:
        parameters.append(_IDEMPOTENCY_KEY)
    if parameters:
        page["parameters"] = parameters
    if form.body:
        page["requestBody"] = {"required": True, "content": _content(form.body, schemas)}
    page["responses"] = _responses(operation, schemas, guarded)
    return page


def _responses(operation: Operation, schemas: _Schemas, guarded: bool) -> dict[str, Any]:
    form = operation.form
    answer: dict[str, Any] = {"description": operation.summary}
    if form.answer:
        answer["content"] = _content(form.answer, schemas)
    if form.answer_headers:
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in form.answer_headers.items()
        }
    responses = {str(status): answer for status in operation.statuses}
    problem = {"content": {routes.PROBLEM: {"schema": schemas.of(routes.ProblemBody)}}}
    for error in _errors(operation, guarded):
        text = (error.__doc__ or "").partition("\n")[0]
        status = str(routes.status_of(error))
        responses.setdefault(status, {"description": text, **problem})
    return {**responses, "default": {"description": "Any other error.", **problem}}


def _content(bodies: Mapping[str, Any], schemas: _Schemas) -> dict[str, Any]:
    content = {}
    for media, sent in bodies.items():
        some = [_BYTES if type is bytes else schemas.of(type) for type in _alternatives(sent)]
        content[media] = {"schema": {"anyOf": some} if len(some) > 1 else some[0]}
    return content


def _in_query(form: Form, schemas: _Schemas) -> Iterable[dict[str, Any]]:
    """The parameters of a query; parameters that depend on one another form an object."""
    if form.query is None:
        return
    schema = schemas.of_query(form.query)
    required = schema.get("required", ())
    fields = {name: _shown(of_field) for name, of_field in schema["properties"].items()}
    if form.query_shape:
        of_all = {"type": "object", "properties": fields, "additionalProperties": False}
        of_all |= {"required": required} if required else {}
        yield {
            "name": "query",
            "in": "query",
            "style": "form",
            "explode": True,
            "required": all("required" in shape for shape in form.query_shape["anyOf"]),
            "schema": {**of_all, **form.query_shape},
        }
        return
    for name, of_field in fields.items():
        if of_field.pop(UNSHOWN_KEY, False):
            continue
        parameter = {"name": name, "in": "query", "schema": of_field}
        if "description" in of_field:
            parameter["description"] = of_field.pop("description")
        if name in required:
            parameter["required"] = True
        yield parameter


def _shown(of_field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter, which is left out where it has no value."""
    some = [choice for choice in of_field.get("anyOf", ()) if choice != {"type": "null"}]
    of_field = some[0] if len(some) == 1 else of_field
    if of_field.get("default", 0) is None:
        del of_field["default"]
    return of_field


def _errors(operation: Operation, guarded: bool) -> Iterable[type[TMSError]]:
    yield from _ANY
    if guarded and operation.access is not Access.OPEN:
        yield from _GUARDED
    yield from operation.errors
    if operation.form.body:
        yield from _OF_BODIES
    if operation.on is Resource.SERVICE:
        return
    yield from _OF_ENGINE
    if operation.on is not Resource.NAMESPACE:
        yield NotFound
    if operation.method != "GET":
        yield from _OF_CHANGES
