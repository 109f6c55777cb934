"""Log groups in the OpenAPI document."""

from typing import Any

from tms.api import routes
from tms.api.openapi.parts import (
    ANY,
    BODY,
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

_MEMBER = path_parameter("member", "^[^/]{1,128}$")


def pages() -> dict[str, Any]:
    """Groups and their members."""
    listing = f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}/groups"
    group = listing + "/{group}"
    return {
        listing: {
            "parameters": [NAMESPACE, TOPIC],
            "get": operation(
                "listGroups",
                "The groups of a topic, with their lag.",
                {routes.OK: {"content": json_body("GroupsBody")}},
                ANY + NAMED,
            ),
        },
        group: {
            "parameters": [NAMESPACE, TOPIC, GROUP],
            "get": operation(
                "describeGroup",
                "Members of a group, and of each partition owner, position and lag.",
                {routes.OK: {"content": json_body("GroupInfo")}},
                ANY + NAMED,
            ),
        },
        f"{group}/members/{{member}}": {
            "parameters": [NAMESPACE, TOPIC, GROUP, _MEMBER],
            "post": operation(
                "pollGroup",
                "Join a group, stay in it, and let partitions go; see docs/groups.md.",
                {routes.OK: {"content": json_body("StandingBody")}},
                ANY + BODY + NAMED + STORES,
                requestBody=request_body(json_body("PollBody")),
            ),
            "delete": operation(
                "leaveGroup",
                "Leave a group: its partitions go to others at once.",
                {routes.NO_CONTENT: {}},
                ANY + NAMED + STORES,
            ),
        },
    }
