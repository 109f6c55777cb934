"""The OpenAPI 3.1 document of the service, with schemas taken from the structs that it speaks."""

from functools import cache
from typing import Any

import msgspec

from tms.api import bodies, commits, delayed, erasing, groups, routes
from tms.api.openapi import delayed as delayed_pages
from tms.api.openapi import groups as group_pages
from tms.api.openapi import messages, operating, queues, topics, transactions
from tms.model.group import GroupInfo
from tms.model.inspection import PartitionInspection
from tms.model.topic import TopicInfo
from tms.model.transaction import TransactionInfo

_JSON_SCHEMAS = (
    TopicInfo,
    PartitionInspection,
    bodies.TopicsBody,
    bodies.SettingsBody,
    bodies.TruncateBody,
    erasing.EraseBody,
    erasing.ErasedBody,
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
    *queues.STRUCTS,
    GroupInfo,
    groups.GroupsBody,
    groups.PollBody,
    groups.StandingBody,
    delayed.DelayedBody,
    delayed.DeferredBody,
    delayed.WaitingBody,
    delayed.CancelledBody,
    routes.ProblemBody,
)


@cache
def document(version: str) -> dict[str, Any]:
    """The document."""
    _, schemas = msgspec.json.schema_components(
        _JSON_SCHEMAS, ref_template="#/components/schemas/{name}"
    )
    schemas["MessageIn"]["properties"]["json"] = {"description": "Any JSON value."}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TMS",
            "version": version,
            "description": "An ordered, immutable message log. See docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": topics.pages()
        | messages.pages()
        | queues.pages()
        | delayed_pages.pages()
        | transactions.pages()
        | group_pages.pages()
        | operating.pages(),
        "components": {"schemas": schemas},
    }
