"""Delayed messages in the OpenAPI document."""

from typing import Any

from tms.api import routes
from tms.api.openapi.parts import (
    ANY,
    BODY,
    BYTES,
    NAMED,
    NAMESPACE,
    STORES,
    TOPIC,
    json_body,
    operation,
    path_parameter,
    query,
    ref,
    request_body,
)
from tms.errors import Conflict
from tms.model.ids import TIME_MS_MAX
from tms.model.topic import Durability

_ID = path_parameter("id", "^[0-9]{1,15}-[0-9]{1,15}$")
_MS = {"type": "integer", "minimum": 0, "maximum": TIME_MS_MAX}


def pages() -> dict[str, Any]:
    """Publishing, listing and cancelling."""
    delayed = f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}/delayed"
    here = [NAMESPACE, TOPIC]
    return {
        delayed: {"parameters": here, "post": _publish(), "get": _list()},
        delayed + "/{id}": {
            "parameters": [*here, _ID],
            "delete": operation(
                "cancelDelayed",
                "Cancel a message that is not delivered yet; whether it is.",
                {routes.OK: {"content": json_body("CancelledBody")}},
                ANY + NAMED + STORES + (Conflict,),
            ),
        },
    }


def _publish() -> dict[str, Any]:
    schema = {"anyOf": [ref("DelayedBody"), ref("DeferredBody")]}
    return operation(
        "publishDelayed",
        "Store messages until they are due: all of them, or none. Either delay_ms or deliver_at_ms "
        "is given.",
        {routes.OK: {"content": {routes.JSON: {"schema": schema}}}},
        ANY + BODY + NAMED + STORES + (Conflict,),
        parameters=[
            query("delay_ms", "For so long from now on.", **_MS),
            query("deliver_at_ms", "Until this time, in ms since 1970.", **_MS),
            query(
                "durability",
                "What the messages survive once acknowledged; left out: as the topic says.",
                type="string",
                enum=[level.value for level in Durability],
            ),
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "The same request with the same key is stored once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            },
        ],
        requestBody=request_body({**json_body("PublishBody"), routes.BLOCKS: {"schema": BYTES}}),
    )


def _list() -> dict[str, Any]:
    return operation(
        "listDelayed",
        "How many messages wait, when the first is due, and some of them, the first ones first.",
        {routes.OK: {"content": json_body("WaitingBody")}},
        ANY + NAMED,
        parameters=[
            query(
                "after",
                "Begin behind the message with this id.",
                type="string",
                pattern="^[0-9]{1,15}-[0-9]{1,15}$",
            ),
            query("limit", "At most so many.", type="integer", minimum=0, maximum=1_000),
        ],
    )
