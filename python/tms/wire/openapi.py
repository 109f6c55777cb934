"""The OpenAPI 3.1 document of the service, with schemas taken from the structs that it speaks."""

from functools import cache
from typing import Any

import msgspec

from tms.errors import (
    Conflict,
    Forbidden,
    Invalid,
    InvalidTruncateTime,
    Malformed,
    NotAcceptable,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    SlowRequest,
    StorageFull,
    StorageUnavailable,
    TMSError,
    TooLarge,
    UnsupportedMedia,
)
from tms.model.inspection import PartitionInspection
from tms.model.snapshot import Isolation
from tms.model.topic import Durability, TopicInfo
from tms.model.transaction import TransactionInfo
from tms.wire import bodies, commits, routes

_JSON_SCHEMAS = (
    TopicInfo,
    PartitionInspection,
    bodies.TopicsBody,
    bodies.SettingsBody,
    bodies.TruncateBody,
    bodies.PublishBody,
    bodies.PublishedBody,
    bodies.AppendedBody,
    bodies.FetchedBody,
    bodies.OffsetsBody,
    bodies.ReadinessBody,
    bodies.RootBody,
    TransactionInfo,
    commits.TransactionsBody,
    commits.BeginBody,
    commits.CommittedBody,
    commits.PositionsBody,
    commits.PruneBody,
    commits.PrunedBody,
    routes.ProblemBody,
)
_ANY: tuple[type[TMSError], ...] = (Malformed, Invalid, NotAcceptable, SlowRequest, Overloaded)
_BODY: tuple[type[TMSError], ...] = (TooLarge, UnsupportedMedia)
_NAMED: tuple[type[TMSError], ...] = (NotFound,)
_STORES: tuple[type[TMSError], ...] = (Forbidden, StorageFull, StorageUnavailable)
_ISOLATED = ("isolation", "Of committed messages, only decided ones.")
_SHOWN: dict[str, Any] = {"type": "string", "enum": [Isolation.COMMITTED, Isolation.UNCOMMITTED]}
_BYTES = {"type": "string", "contentMediaType": "application/octet-stream"}


@cache
def document(version: str) -> dict[str, Any]:
    """The document."""
    _, schemas = msgspec.json.schema_components(
        _JSON_SCHEMAS, ref_template="#/components/schemas/{name}"
    )
    schemas["MessageIn"]["properties"]["json"] = {"description": "Any JSON value."}
    topics = f"{routes.PREFIX}/{{namespace}}/topics"
    topic = f"{topics}/{{topic}}"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TMS",
            "version": version,
            "description": "An ordered, immutable message log. See docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            topics: {"parameters": [_NAMESPACE], "get": _list_topics()},
            topic: {"parameters": [_NAMESPACE, _TOPIC], **_topic()},
            f"{topic}/truncate": {"parameters": [_NAMESPACE, _TOPIC], "post": _truncate()},
            f"{topic}/offsets": {"parameters": [_NAMESPACE, _TOPIC], "get": _offsets()},
            f"{topic}/inspect": {"parameters": [_NAMESPACE, _TOPIC], "get": _inspect()},
            f"{topic}/messages": {
                "parameters": [_NAMESPACE, _TOPIC],
                "post": _publish(),
                "get": _fetch(),
            },
            **_transactions(),
            f"{topic}/staged": {"parameters": [_NAMESPACE, _TOPIC], "post": _stage()},
            f"{topic}/positions/{{group}}": {
                "parameters": [_NAMESPACE, _TOPIC, _GROUP],
                "get": _operation("positions", "Where a group stands.", _PLACES, _ANY + _NAMED),
                "put": _operation(
                    "setPositions",
                    "Move a group.",
                    _PLACES,
                    _ANY + _NAMED + _BODY + (Conflict,),
                    requestBody=_request(_json("PositionsBody")),
                ),
                "delete": _operation(
                    "forgetPositions",
                    "Let a group begin anew.",
                    {routes.NO_CONTENT: {}},
                    _ANY + _NAMED,
                ),
            },
            **_operating(),
        },
        "components": {"schemas": schemas},
    }


def _path_parameter(name: str, pattern: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_NAMESPACE = _path_parameter("namespace", "^[A-Za-z0-9_]{1,128}$")
_TOPIC = _path_parameter("topic", "^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str) -> dict[str, Any]:
    return {routes.JSON: {"schema": _ref(name)}}


def _operation(
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
                "content": {routes.PROBLEM: {"schema": _ref("ProblemBody")}},
            },
        )
    responses["default"] = {
        "description": "Any other error.",
        "content": {routes.PROBLEM: {"schema": _ref("ProblemBody")}},
    }
    return {"operationId": id, "summary": summary, "responses": responses, **more}


def _request(content: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": content}


def _list_topics() -> dict[str, Any]:
    return _operation(
        "listTopics",
        "The topics of a namespace, in the order of their names.",
        {routes.OK: {"content": _json("TopicsBody")}},
        _ANY,
        parameters=[
            _query("after", "Begin after this topic: `next` of the page before.", type="string"),
            _query("limit", "Topics in a page.", type="integer", minimum=1, maximum=10_000),
        ],
    )


def _topic() -> dict[str, Any]:
    info = {"content": _json("TopicInfo")}
    return {
        "put": _operation(
            "createTopic",
            "Create the topic; 200 when it exists with the same settings.",
            {routes.CREATED: info, routes.OK: info},
            _ANY + _BODY + _STORES + (Conflict,),
            requestBody=_request(_json("SettingsBody")),
        ),
        "get": _operation(
            "describeTopic",
            "The topic with its partitions.",
            {routes.OK: info},
            _ANY + _NAMED,
        ),
        "patch": _operation(
            "updateTopic",
            "Change settings; what is left out stays. Partitions can only grow.",
            {routes.OK: info},
            _ANY + _BODY + _NAMED + _STORES + (Conflict,),
            requestBody=_request(_json("SettingsBody")),
        ),
        "delete": _operation(
            "deleteTopic",
            "Delete the topic and everything in it.",
            {routes.NO_CONTENT: {}},
            _ANY + _NAMED + _STORES,
        ),
    }


def _truncate() -> dict[str, Any]:
    return _operation(
        "truncateTopic",
        "Make all messages before a position unreadable, in every partition.",
        {routes.OK: {"content": _json("TopicInfo")}},
        _ANY + _BODY + _NAMED + _STORES,
        requestBody=_request(_json("TruncateBody")),
    )


def _offsets() -> dict[str, Any]:
    return _operation(
        "offsets",
        "Which offsets a position is: of the first message there or after it, by partition.",
        {routes.OK: {"content": _json("OffsetsBody")}},
        _ANY + _NAMED,
        parameters=[_query("at", "Left out: latest.", type="string"), _query(*_ISOLATED, **_SHOWN)],
    )


def _inspect() -> dict[str, Any]:
    return _operation(
        "inspectPartition",
        "How a partition stands in the store: segments, and the newest blocks.",
        {routes.OK: {"content": _json("PartitionInspection")}},
        _ANY + _NAMED,
        parameters=[
            _query("partition", "Which partition.", type="integer", minimum=0),
            _query("limit", "How many blocks.", type="integer", minimum=1, maximum=1_000),
        ],
    )


def _publish() -> dict[str, Any]:
    answer = {
        "content": {
            routes.JSON: {"schema": {"anyOf": [_ref("PublishedBody"), _ref("AppendedBody")]}}
        }
    }
    return _operation(
        "publish",
        "Store messages: all of them, or none. JSON is answered with places, blocks with ranges.",
        {routes.OK: answer},
        _ANY + _BODY + _NAMED + _STORES + (Conflict,),
        parameters=[
            _query(
                "durability",
                "What the messages survive once acknowledged; left out: as the topic says.",
                type="string",
                enum=[level.value for level in Durability],
            ),
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "JSON with the same key and body is stored once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            },
        ],
        requestBody=_request({**_json("PublishBody"), routes.BLOCKS: {"schema": _BYTES}}),
    )


def _stage() -> dict[str, Any]:
    transaction = _query("transaction", "The id of an open one.", type="integer", minimum=1)
    return _operation(
        "stage",
        "Store blocks of a transaction, unseen until its commit names them or their producer.",
        {routes.NO_CONTENT: {}},
        _ANY + _NAMED + _BODY + _STORES + (Conflict,),
        parameters=[transaction | {"required": True}],
        requestBody=_request({routes.BLOCKS: {"schema": _BYTES}}),
    )


def _fetch() -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    answer = {
        "headers": {
            routes.NEXT_HEADER: {"description": "`from` of the next fetch.", **text},
            routes.END_HEADER: {"description": "PARTITION:OFFSET after the last message.", **text},
        },
        "content": {
            **_json("FetchedBody"),
            routes.BLOCKS: {"schema": _BYTES},
            routes.ARROW_STREAM: {"schema": _BYTES},
        },
    }
    return _operation(
        "fetch",
        "Read messages from a position on; may wait for the first one (long poll).",
        {routes.OK: answer},
        _ANY + _NAMED + (OffsetOutOfRange,),
        parameters=[
            _query(
                "from",
                "earliest, latest, id:HEX, after:HEX, time:MS or offset:N for all partitions, or "
                "PARTITION:POSITION separated by commas.",
                type="string",
            ),
            _query("max_bytes", "About how much to answer.", type="integer", minimum=1),
            _query("wait_ms", "How long to wait for a message.", type="integer", minimum=0),
            _query(
                "isolation",
                "What of transactions is shown.",
                type="string",
                enum=[level.value for level in Isolation],
            ),
            _query("snapshot", "With `snapshot`: base64 of TransactionCodec's.", type="string"),
            _query(
                "limit", "Messages in JSON or Arrow.", type="integer", minimum=1, maximum=10_000
            ),
        ],
    )


_GROUP = _path_parameter("group", "^[^/]{1,255}$")
_ID = _path_parameter("id", "^[0-9]{1,19}$")
_INFO = {routes.OK: {"content": _json("TransactionInfo")}}
_PLACES = {routes.OK: {"content": _json("PositionsBody")}}


def _transactions() -> dict[str, Any]:
    one = routes.TRANSACTIONS + "/{id}"
    begun = {routes.CREATED: {"content": _json("TransactionInfo")}}
    return {
        routes.TRANSACTIONS: {
            "get": _operation(
                "listTransactions",
                "The transactions in progress.",
                {routes.OK: {"content": _json("TransactionsBody")}},
                _ANY,
            ),
            "post": _operation(
                "beginTransaction",
                "Begin a transaction.",
                begun,
                _ANY + _BODY,
                requestBody=_request(_json("BeginBody")),
            ),
        },
        routes.TRANSACTIONS + "/prune": {
            "post": _operation(
                "pruneTransactions",
                "Take old transactions off the invalid list; their messages are still never seen.",
                {routes.OK: {"content": _json("PrunedBody")}},
                _ANY + _BODY + (InvalidTruncateTime,),
                requestBody=_request(_json("PruneBody")),
            ),
        },
        one: {
            "parameters": [_ID],
            "get": _operation("describeTransaction", "How it stands.", _INFO, _ANY + _NAMED),
            "delete": _operation(
                "abortTransaction", "Abort it.", _INFO, _ANY + _NAMED + (Conflict,)
            ),
        },
        one + "/invalidate": {
            "parameters": [_ID],
            "post": _operation("invalidateTransaction", "Make it invalid.", _INFO, _ANY + _NAMED),
        },
        one + "/commit": {
            "parameters": [_path_parameter("id", "^([0-9]{1,19}|new)$")],
            "post": _operation(
                "commitTransaction",
                "Commit with everything in it; see docs/transactions.md.",
                {routes.OK: {"content": _json("CommittedBody")}},
                _ANY + _NAMED + _BODY + _STORES + (Conflict,),
                requestBody=_request({routes.COMMIT: {"schema": _BYTES}}),
            ),
        },
    }


def _operating() -> dict[str, Any]:
    def get(id: str, summary: str, content: dict[str, Any], *also: int) -> dict[str, Any]:
        answers = {status: {"content": content} for status in (routes.OK, *also)}
        return {"get": _operation(id, summary, answers)}

    return {
        "/": get("root", "Name, version and links.", _json("RootBody")),
        routes.LIVEZ: get("live", "200 while the process serves.", _json("ReadinessBody")),
        routes.READYZ: get(
            "ready", "Whether publishing would work.", _json("ReadinessBody"), routes.NOT_READY
        ),
        routes.METRICS: get(
            "metrics", "Prometheus metrics.", {"text/plain": {"schema": {"type": "string"}}}
        ),
        routes.OPENAPI: get("openapi", "This document.", {routes.JSON: {"schema": {}}}),
    }
