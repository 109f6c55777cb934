"""Messages in the OpenAPI document."""

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
    query,
    ref,
    request_body,
)
from tms.errors import Conflict, OffsetOutOfRange
from tms.model.filter import FILTER_BYTES_MAX
from tms.model.snapshot import Isolation
from tms.model.topic import Durability


def pages() -> dict[str, Any]:
    """Publishing, staging and fetching."""
    topic = f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}"
    here = [NAMESPACE, TOPIC]
    return {
        f"{topic}/messages": {"parameters": here, "post": publish(), "get": fetch()},
        f"{topic}/staged": {"parameters": here, "post": stage()},
    }


def publish() -> dict[str, Any]:
    answer = {
        "content": {routes.JSON: {"schema": {"anyOf": [ref("PublishedBody"), ref("AppendedBody")]}}}
    }
    return operation(
        "publish",
        "Store messages: all of them, or none. JSON is answered with places, blocks with ranges.",
        {routes.OK: answer},
        ANY + BODY + NAMED + STORES + (Conflict,),
        parameters=[
            query(
                "durability",
                "What the messages survive once acknowledged; left out: as the topic says.",
                type="string",
                enum=[level.value for level in Durability],
            ),
            query(
                "expect",
                "Store them only if no message of their keys, or without keys none of the "
                "partition, came after this id; `nothing`: none whatsoever.",
                type="string",
                pattern="^(nothing|[0-9A-Fa-f]{40})$",
            ),
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "JSON with the same key and body is stored once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            },
        ],
        requestBody=request_body({**json_body("PublishBody"), routes.BLOCKS: {"schema": BYTES}}),
    )


def stage() -> dict[str, Any]:
    transaction = query("transaction", "The id of an open one.", type="integer", minimum=1)
    return operation(
        "stage",
        "Store blocks of a transaction, unseen until its commit names them or their producer.",
        {routes.NO_CONTENT: {}},
        ANY + NAMED + BODY + STORES + (Conflict,),
        parameters=[transaction | {"required": True}],
        requestBody=request_body({routes.BLOCKS: {"schema": BYTES}}),
    )


def fetch() -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    answer = {
        "headers": {
            routes.NEXT_HEADER: {"description": "`from` of the next fetch.", **text},
            routes.END_HEADER: {"description": "PARTITION:OFFSET after the last message.", **text},
            routes.REACHED_HEADER: {
                "description": "PARTITION:OFFSET before which everything was looked at; less than "
                "the end means that there is more, also when no message came.",
                **text,
            },
        },
        "content": {
            **json_body("FetchedBody"),
            routes.BLOCKS: {"schema": BYTES},
            routes.ARROW_STREAM: {"schema": BYTES},
        },
    }
    return operation(
        "fetch",
        "Read messages from a position on; may wait for the first one (long poll).",
        {routes.OK: answer},
        ANY + NAMED + (OffsetOutOfRange,),
        parameters=[
            query(
                "from",
                "earliest, latest, id:HEX, after:HEX, time:MS or offset:N for all partitions, or "
                "PARTITION:POSITION separated by commas.",
                type="string",
            ),
            query("max_bytes", "About how much to answer.", type="integer", minimum=1),
            query("wait_ms", "How long to wait for a message.", type="integer", minimum=0),
            query(
                "isolation",
                "What of transactions is shown.",
                type="string",
                enum=[level.value for level in Isolation],
            ),
            query("snapshot", "With `snapshot`: base64 of TransactionCodec's.", type="string"),
            query(
                "filter",
                "Only messages that match, such as `key ^= user- and header.kind = order`.",
                type="string",
                maxLength=FILTER_BYTES_MAX,
            ),
            query("limit", "Messages in JSON or Arrow.", type="integer", minimum=1, maximum=10_000),
        ],
    )
