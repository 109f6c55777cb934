"""What the pages of the OpenAPI document are made of."""

from typing import Any

from tms.api import routes
from tms.errors import (
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

ANY: tuple[type[TMSError], ...] = (Malformed, Invalid, NotAcceptable, SlowRequest, Overloaded)
BODY: tuple[type[TMSError], ...] = (TooLarge, UnsupportedMedia)
NAMED: tuple[type[TMSError], ...] = (NotFound,)
STORES: tuple[type[TMSError], ...] = (Forbidden, StorageFull, StorageUnavailable)
BYTES = {"type": "string", "contentMediaType": "application/octet-stream"}


def path_parameter(name: str, pattern: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


NAMESPACE = path_parameter("namespace", "^[A-Za-z0-9_]{1,128}$")
TOPIC = path_parameter("topic", "^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")
GROUP = path_parameter("group", "^[^/]{1,255}$")


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def json_body(name: str) -> dict[str, Any]:
    return {routes.JSON: {"schema": ref(name)}}


def operation(
    id: str,
    summary: str,
    answers: dict[int, dict[str, Any]],
    errors: tuple[type[TMSError], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {"description": summary, **answer} for status, answer in answers.items()
    }
    for error in errors:
        responses.setdefault(
            str(routes.STATUS[error.kind]),
            {
                "description": (error.__doc__ or "").partition("\n")[0],
                "content": {routes.PROBLEM: {"schema": ref("ProblemBody")}},
            },
        )
    responses["default"] = {
        "description": "Any other error.",
        "content": {routes.PROBLEM: {"schema": ref("ProblemBody")}},
    }
    return {"operationId": id, "summary": summary, "responses": responses, **more}


def request_body(content: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": content}
