"""The addresses of all pages and actions."""

from collections.abc import Sequence

from tms.console.pages import (
    access,
    dead_letters,
    groups,
    message,
    messages,
    publishing,
    queues,
    signing_in,
    topics,
)
from tms.console.visit import PageRoute

ROUTES: Sequence[PageRoute] = (
    *signing_in.ROUTES,
    *topics.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *publishing.ROUTES,
    *groups.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *access.ROUTES,
)
