"""Operating in the OpenAPI document."""

from typing import Any

from tms.api import routes
from tms.api.openapi.parts import (
    json_body,
    operation,
)


def pages() -> dict[str, Any]:
    """What operators ask."""

    def get(id: str, summary: str, content: dict[str, Any], *also: int) -> dict[str, Any]:
        answers = {status: {"content": content} for status in (routes.OK, *also)}
        return {"get": operation(id, summary, answers)}

    return {
        "/": get("root", "Name, version and links.", json_body("RootBody")),
        routes.LIVEZ: get("live", "200 while the process serves.", json_body("ReadinessBody")),
        routes.READYZ: get(
            "ready", "Whether publishing would work.", json_body("ReadinessBody"), routes.NOT_READY
        ),
        routes.METRICS: get(
            "metrics", "Prometheus metrics.", {"text/plain": {"schema": {"type": "string"}}}
        ),
        routes.OPENAPI: get("openapi", "This document.", {routes.JSON: {"schema": {}}}),
    }
