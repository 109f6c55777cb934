"""Queues in the OpenAPI document."""

from typing import Any

from tms.api import queues, routes
from tms.api.openapi.parts import (
    ANY,
    BODY,
    BYTES,
    GROUP,
    NAMED,
    NAMESPACE,
    STORES,
    TOPIC,
    json_body,
    operation,
    request_body,
)
from tms.errors import Conflict
from tms.model.queue import RECEIVE_MAX

STRUCTS = (
    queues.QueueSettingsBody,
    queues.QueueBody,
    queues.QueuesBody,
    queues.ReceiveBody,
    queues.ReceivedBody,
    queues.AckBody,
    queues.NackBody,
    queues.ExtendBody,
    queues.RejectBody,
    queues.TokensBody,
    queues.RedriveBody,
    queues.RedrivenBody,
)
_ERRORS = ANY + BODY + NAMED + STORES
_CALLS = (
    ("ack", "Messages are done with.", "AckBody"),
    ("nack", "Messages are to be delivered again, later.", "NackBody"),
    ("extend", "The leases of messages begin anew.", "ExtendBody"),
    ("reject", "Messages go to the dead letters.", "RejectBody"),
)


def pages() -> dict[str, Any]:
    """Queues and their messages."""
    listing = f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}/queues"
    queue = f"{listing}/{{group}}"
    here = [NAMESPACE, TOPIC, GROUP]
    return {
        listing: {"parameters": [NAMESPACE, TOPIC], "get": list_queues()},
        queue: {"parameters": here, **_one()},
        f"{queue}/receive": {"parameters": here, "post": receive()},
        **{
            f"{queue}/{name}": {"parameters": here, "post": _call(name, summary, body)}
            for name, summary, body in _CALLS
        },
        f"{queue}/redrive": {"parameters": here, "post": redrive()},
    }


def list_queues() -> dict[str, Any]:
    return operation(
        "listQueues",
        "The queues of a topic, by the names of their groups.",
        {routes.OK: {"content": json_body("QueuesBody")}},
        ANY + NAMED,
    )


def _one() -> dict[str, Any]:
    info = {"content": json_body("QueueBody")}
    body = request_body(json_body("QueueSettingsBody"))
    return {
        "put": operation(
            "declareQueue",
            "Make the queue; 200 when it is there with the same settings.",
            {routes.CREATED: info, routes.OK: info},
            (*_ERRORS, Conflict),
            requestBody=body,
        ),
        "get": operation(
            "describeQueue", "The queue and how it stands.", {routes.OK: info}, ANY + NAMED
        ),
        "patch": operation(
            "updateQueue",
            "Change settings; what is left out stays.",
            {routes.OK: info},
            (*_ERRORS, Conflict),
            requestBody=body,
        ),
        "delete": operation(
            "deleteQueue",
            "Delete the queue, not the messages of the topic.",
            {routes.NO_CONTENT: {}},
            ANY + NAMED + STORES,
        ),
    }


def receive() -> dict[str, Any]:
    return operation(
        "receive",
        f"Lease up to {RECEIVE_MAX} messages; may wait for the first one (long poll).",
        {routes.OK: {"content": {**json_body("ReceivedBody"), routes.BLOCKS: {"schema": BYTES}}}},
        _ERRORS,
        requestBody=request_body(json_body("ReceiveBody")),
    )


def _call(name: str, summary: str, body: str) -> dict[str, Any]:
    return operation(
        name,
        summary,
        {routes.OK: {"content": json_body("TokensBody")}},
        _ERRORS,
        requestBody=request_body(json_body(body)),
    )


def redrive() -> dict[str, Any]:
    return operation(
        "redrive",
        "Move dead letters back to the topic, in one transaction.",
        {routes.OK: {"content": json_body("RedrivenBody")}},
        (*_ERRORS, Conflict),
        requestBody=request_body(json_body("RedriveBody")),
    )
