"""What operators ask of a service: how it is, and what it offers."""

from typing import Any, Protocol

from tms.api import bodies, routes
from tms.api.operation import DeclaredOnly, Form, Resource, get
from tms.model.access import Access


class ServiceApi(Protocol):
    """The service itself."""

    @get("/", Resource.SERVICE, Access.OPEN, form=Form(answer={routes.JSON: bodies.RootBody}))
    def root(self) -> None:
        """Name, version and links."""
        raise DeclaredOnly

    @get(
        routes.LIVEZ,
        Resource.SERVICE,
        Access.OPEN,
        form=Form(answer={routes.JSON: bodies.LivenessBody}),
    )
    def live(self) -> None:
        """200 while the process answers, whatever the store does."""
        raise DeclaredOnly

    @get(
        routes.STARTUPZ,
        Resource.SERVICE,
        Access.OPEN,
        statuses=(routes.OK, routes.NOT_READY),
        form=Form(answer={routes.JSON: bodies.StartedBody}),
    )
    def started(self) -> None:
        """Whether the store was opened; once it was, for as long as the process lives."""
        raise DeclaredOnly

    @get(
        routes.READYZ,
        Resource.SERVICE,
        Access.OPEN,
        statuses=(routes.OK, routes.NOT_READY),
        form=Form(answer={routes.JSON: bodies.ReadinessBody}),
    )
    def ready(self) -> None:
        """Whether publishing would work."""
        raise DeclaredOnly

    @get(routes.METRICS, Resource.SERVICE, Access.OBSERVE, form=Form(answer={routes.TEXT: str}))
    def metrics(self) -> None:
        """Prometheus metrics."""
        raise DeclaredOnly

    @get(
        routes.OPENAPI,
        Resource.SERVICE,
        Access.OPEN,
        form=Form(answer={routes.JSON: dict[str, Any]}),
    )
    def openapi(self) -> None:
        """This document."""
        raise DeclaredOnly
