"""An error as a page: its sentence, and a way on."""

from tms.api import routes
from tms.console.visit import WebPage
from tms.errors import TMSError


def problem_page(error: TMSError, request_id: str) -> WebPage:
    """A page that says what was wrong."""
    status = routes.status_of(error)
    values = {"error": error, "status": status, "request_id": request_id}
    return WebPage("problem.html", values, status)
