"""The operations on a service: its state and its features."""

from collections.abc import Callable
from typing import Any, Protocol

from tms.api import bodies, routes
from tms.api.operation import F, Form, Resource, get
from tms.model.access import Access


def _state(path: str, answer: Any, *refusals: int) -> Callable[[F], F]:
    """Declares an operation that needs no permission and answers in JSON, with 200 or a refusal."""
    return get(
        path,
        Resource.SERVICE,
        Access.OPEN,
        statuses=(routes.OK, *refusals),
        form=Form(answer={routes.JSON: answer}),
    )


class ServiceApi(Protocol):
    """The service itself."""

    @_state("/", bodies.RootBody)
    def root(self) -> None:
        """Name, version and links."""

    @_state(routes.LIVEZ, bodies.LivenessBody)
    def live(self) -> None:
        """200 while the process answers, whatever the store does."""

    @_state(routes.STARTUPZ, bodies.StartedBody, routes.NOT_READY)
    def started(self) -> None:
        """200 once the store was opened, for as long as the process lives."""

    @_state(routes.READYZ, bodies.ReadinessBody, routes.NOT_READY)
    def ready(self) -> None:
        """200 if publishing would work."""

    @get(routes.METRICS, Resource.SERVICE, Access.OBSERVE, form=Form(answer={routes.TEXT: str}))
    def metrics(self) -> None:
        """Prometheus metrics."""

    @_state(routes.OPENAPI, dict[str, Any])
    def openapi(self) -> None:
        """This document."""
