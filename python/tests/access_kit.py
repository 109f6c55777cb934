"""Principals with tokens and grants at a service that requires tokens."""

import threading
import time
from typing import Any

import tms
from tests.http_kit import Answer, Served
from tests.waiting import PATIENCE_S, until
from tms.api.operation import Operation
from tms.client.client import Bus

VALUES = {
    "namespace": "default",
    "topic": "orders",
    "group": "desks",
    "member": "one",
    "partition": "0",
    "number": "0",
    "id": "1",
}


def path_of(operation: Operation) -> str:
    path = operation.path
    for name, value in VALUES.items():
        path = path.replace(f"{{{name}}}", value)
    return path


class People:
    """Tokens of principals, each with grants."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.access = served.service.engine.access
        self.url = served.url

    def token(self, principal: str, *grants: str) -> str:
        for grant in grants:
            verb, _, pattern = grant.partition(" ")
            self.access.add_grant(principal, verb, pattern)
        return self.access.create_token(principal).token

    def bus(self, principal: str, *grants: str, **options: Any) -> Bus:
        return tms.connect(self.url, token=self.token(principal, *grants), **options)

    def ask(self, operation: Operation, token: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with self.served.connect() as client:
            body = b"{}" if operation.method in ("POST", "PUT", "PATCH") else None
            return client.request(operation.method, path_of(operation), body, **headers)


def waits(bus: Bus, topic: str) -> tuple[threading.Thread, list[BaseException | float]]:
    """A long poll in a thread, and its outcome."""
    ended: list[BaseException | float] = []

    def poll() -> None:
        began_s = time.monotonic()
        try:
            bus.fetch(topic, {0: "latest"}, wait_s=2 * PATIENCE_S)
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(time.monotonic() - began_s)

    thread = threading.Thread(target=poll)
    thread.start()
    return thread, ended


def until_polling(people: People, principal: str) -> None:
    active = people.served.service.guard
    assert active is not None
    until(
        lambda: any(one.principal == principal for one in [*active.decisions._active]), "it polls"
    )
