"""The addresses of all pages and actions."""

from collections.abc import Sequence

from tms.console.pages import (
    access,
    dead_letters,
    delayed,
    groups,
    instances,
    message,
    messages,
    overview,
    publishing,
    queues,
    runbooks,
    service,
    signing_in,
    topic_removing,
    topic_settings,
    topics,
    transactions,
)
from tms.console.visit import PageRoute

ROUTES: Sequence[PageRoute] = (
    *signing_in.ROUTES,
    *overview.ROUTES,
    *runbooks.ROUTES,
    *topics.ROUTES,
    *topic_settings.ROUTES,
    *topic_removing.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *publishing.ROUTES,
    *access.ROUTES,
    *groups.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *delayed.ROUTES,
    *transactions.ROUTES,
    *instances.ROUTES,
    *service.ROUTES,
)
