"""Transactions and positions in the OpenAPI document."""

from typing import Any

from tms.api import routes
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
    path_parameter,
    request_body,
)
from tms.errors import Conflict, InvalidTruncateTime

_ID = path_parameter("id", "^[0-9]{1,19}$")
_INFO = {routes.OK: {"content": json_body("TransactionInfo")}}
_PLACES = {routes.OK: {"content": json_body("PositionsBody")}}


def pages() -> dict[str, Any]:
    """Transactions, and positions of groups."""
    return _transactions() | _positions()


def _transactions() -> dict[str, Any]:
    one = routes.TRANSACTIONS + "/{id}"
    begun = {routes.CREATED: {"content": json_body("TransactionInfo")}}
    return {
        routes.TRANSACTIONS: {
            "get": operation(
                "listTransactions",
                "The transactions in progress.",
                {routes.OK: {"content": json_body("TransactionsBody")}},
                ANY,
            ),
            "post": operation(
                "beginTransaction",
                "Begin a transaction.",
                begun,
                ANY + BODY,
                requestBody=request_body(json_body("BeginBody")),
            ),
        },
        routes.TRANSACTIONS + "/prune": {
            "post": operation(
                "pruneTransactions",
                "Take old transactions off the invalid list; their messages are still never seen.",
                {routes.OK: {"content": json_body("PrunedBody")}},
                ANY + BODY + (InvalidTruncateTime,),
                requestBody=request_body(json_body("PruneBody")),
            ),
        },
        one: {
            "parameters": [_ID],
            "get": operation("describeTransaction", "How it stands.", _INFO, ANY + NAMED),
            "delete": operation("abortTransaction", "Abort it.", _INFO, ANY + NAMED + (Conflict,)),
        },
        one + "/invalidate": {
            "parameters": [_ID],
            "post": operation("invalidateTransaction", "Make it invalid.", _INFO, ANY + NAMED),
        },
        one + "/commit": {
            "parameters": [path_parameter("id", "^([0-9]{1,19}|new)$")],
            "post": operation(
                "commitTransaction",
                "Commit with everything in it; see docs/transactions.md.",
                {routes.OK: {"content": json_body("CommittedBody")}},
                ANY + NAMED + BODY + STORES + (Conflict,),
                requestBody=request_body({routes.COMMIT: {"schema": BYTES}}),
            ),
        },
    }


def _positions() -> dict[str, Any]:
    positions = f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}/positions/{{group}}"
    return {
        positions: {
            "parameters": [NAMESPACE, TOPIC, GROUP],
            "get": operation("positions", "Where a group stands.", _PLACES, ANY + NAMED),
            "put": operation(
                "setPositions",
                "Move a group.",
                _PLACES,
                ANY + NAMED + BODY + (Conflict,),
                requestBody=request_body(json_body("PositionsBody")),
            ),
            "delete": operation(
                "forgetPositions",
                "Let a group begin anew.",
                {routes.NO_CONTENT: {}},
                ANY + NAMED,
            ),
        },
    }
