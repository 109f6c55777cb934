"""The addresses of all pages and actions."""

from collections.abc import Sequence

from tms.console.pages import (
    delayed,
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
    *delayed.ROUTES,
    *transactions.ROUTES,
)
