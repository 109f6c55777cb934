"""The addresses of all pages and actions."""

from collections.abc import Sequence

from tms.console.pages import message, messages, overview, publishing, runbooks, signing_in, topics
from tms.console.visit import PageRoute

ROUTES: Sequence[PageRoute] = (
    *signing_in.ROUTES,
    *overview.ROUTES,
    *runbooks.ROUTES,
    *topics.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *publishing.ROUTES,
)
