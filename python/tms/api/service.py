"""The operations on a service: its state and its features."""

from typing import Any, Protocol

from tms.api import bodies, routes
from tms.api.operation import Form, Resource, get
from tms.model.access import Access


class ServiceApi(Protocol):
    """The service itself."""

    @get("/", Resource.SERVICE, Access.OPEN, form=Form(answer={routes.JSON: bodies.RootBody}))
    def root(self) -> None:
        """Name, version and links."""

    @get(
        routes.LIVEZ,
        Resource.SERVICE,
        Access.OPEN,
        form=Form(answer={routes.JSON: bodies.LivenessBody}),
    )
    def live(self) -> None:
        """200 while the process answers, whatever the store does."""

    @get(
        routes.STARTUPZ,
        Resource.SERVICE,
        Access.OPEN,
        statuses=(routes.OK, routes.NOT_READY),
        form=Form(answer={routes.JSON: bodies.StartedBody}),
    )
    def started(self) -> None:
        """200 once the store was opened, for as long as the process lives."""

    @get(
        routes.READYZ,
        Resource.SERVICE,
        Access.OPEN,
        statuses=(routes.OK, routes.NOT_READY),
        form=Form(answer={routes.JSON: bodies.ReadinessBody}),
    )
    def ready(self) -> None:
        """200 if publishing would work."""

    @get(routes.METRICS, Resource.SERVICE, Access.OBSERVE, form=Form(answer={routes.TEXT: str}))
    def metrics(self) -> None:
        """Prometheus metrics."""

    @get(
        routes.OPENAPI,
        Resource.SERVICE,
        Access.OPEN,
        form=Form(answer={routes.JSON: dict[str, Any]}),
    )
    def openapi(self) -> None:
        """This document."""
