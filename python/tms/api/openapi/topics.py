"""Topics in the OpenAPI document."""

from typing import Any

from tms.api import routes
from tms.api.openapi.parts import (
    ANY,
    BODY,
    NAMED,
    NAMESPACE,
    STORES,
    TOPIC,
    json_body,
    operation,
    query,
    request_body,
)
from tms.errors import Conflict
from tms.model.snapshot import Isolation

ISOLATED = ("isolation", "Of committed messages, only decided ones.")
SHOWN: dict[str, Any] = {"type": "string", "enum": [Isolation.COMMITTED, Isolation.UNCOMMITTED]}


def pages() -> dict[str, Any]:
    """Topics, apart from their messages."""
    topics = f"{routes.PREFIX}/{{namespace}}/topics"
    topic = f"{topics}/{{topic}}"
    return {
        topics: {"parameters": [NAMESPACE], "get": list_topics()},
        topic: {"parameters": [NAMESPACE, TOPIC], **_one()},
        f"{topic}/truncate": {"parameters": [NAMESPACE, TOPIC], "post": truncate()},
        f"{topic}/erase": {"parameters": [NAMESPACE, TOPIC], "post": erase()},
        f"{topic}/offsets": {"parameters": [NAMESPACE, TOPIC], "get": offsets()},
        f"{topic}/inspect": {"parameters": [NAMESPACE, TOPIC], "get": inspect()},
    }


def list_topics() -> dict[str, Any]:
    return operation(
        "listTopics",
        "The topics of a namespace, in the order of their names.",
        {routes.OK: {"content": json_body("TopicsBody")}},
        ANY,
        parameters=[
            query("after", "Begin after this topic: `next` of the page before.", type="string"),
            query("limit", "Topics in a page.", type="integer", minimum=1, maximum=10_000),
        ],
    )


def _one() -> dict[str, Any]:
    info = {"content": json_body("TopicInfo")}
    return {
        "put": operation(
            "createTopic",
            "Create the topic; 200 when it exists with the same settings.",
            {routes.CREATED: info, routes.OK: info},
            ANY + BODY + STORES + (Conflict,),
            requestBody=request_body(json_body("SettingsBody")),
        ),
        "get": operation(
            "describeTopic",
            "The topic with its partitions.",
            {routes.OK: info},
            ANY + NAMED,
        ),
        "patch": operation(
            "updateTopic",
            "Change settings; what is left out stays. Partitions can only grow.",
            {routes.OK: info},
            ANY + BODY + NAMED + STORES + (Conflict,),
            requestBody=request_body(json_body("SettingsBody")),
        ),
        "delete": operation(
            "deleteTopic",
            "Delete the topic and everything in it.",
            {routes.NO_CONTENT: {}},
            ANY + NAMED + STORES,
        ),
    }


def truncate() -> dict[str, Any]:
    return operation(
        "truncateTopic",
        "Make all messages before a position unreadable, in every partition.",
        {routes.OK: {"content": json_body("TopicInfo")}},
        ANY + BODY + NAMED + STORES,
        requestBody=request_body(json_body("TruncateBody")),
    )


def erase() -> dict[str, Any]:
    return operation(
        "erase",
        "Take the messages with a key, or the one with an id, out of the topic and the store for "
        "good; with a key also the delayed ones that wait. It may take minutes; after a failure, "
        "send it again.",
        {routes.OK: {"content": json_body("ErasedBody")}},
        ANY + BODY + NAMED + STORES,
        requestBody=request_body(json_body("EraseBody")),
    )


def offsets() -> dict[str, Any]:
    return operation(
        "offsets",
        "Which offsets a position is: of the first message there or after it, by partition.",
        {routes.OK: {"content": json_body("OffsetsBody")}},
        ANY + NAMED,
        parameters=[query("at", "Left out: latest.", type="string"), query(*ISOLATED, **SHOWN)],
    )


def inspect() -> dict[str, Any]:
    return operation(
        "inspectPartition",
        "How a partition stands in the store: segments, and the newest blocks.",
        {routes.OK: {"content": json_body("PartitionInspection")}},
        ANY + NAMED,
        parameters=[
            query("partition", "Which partition.", type="integer", minimum=0),
            query("limit", "How many blocks.", type="integer", minimum=1, maximum=1_000),
        ],
    )
