"""The addresses of all pages and actions."""

from collections.abc import Sequence

from tms.console.pages import (
    delayed,
    message,
    messages,
    publishing,
    signing_in,
    topic_removing,
    topic_settings,
    topics,
    transactions,
)
from tms.console.visit import PageRoute

ROUTES: Sequence[PageRoute] = (
    *signing_in.ROUTES,
    *topics.ROUTES,
    *topic_settings.ROUTES,
    *topic_removing.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *publishing.ROUTES,
    *delayed.ROUTES,
    *transactions.ROUTES,
)
