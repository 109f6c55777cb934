"""Signing in and out."""

from tms.console.visit import PageRoute, WebPage
from tms.errors import Unauthenticated


def to_sign_in(visit, error: Unauthenticated) -> WebPage:  # type: ignore[no-untyped-def]
    """The page on which a visitor signs in, who then gets to the page that was asked for."""
    return WebPage("sign_in.html", {"error": error}, 401)


ROUTES: tuple[PageRoute, ...] = ()
