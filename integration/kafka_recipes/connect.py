"""A worker of Kafka Connect, as the page starts it."""

import json
import urllib.error
import urllib.request
from typing import Any, Self

from integration.cluster.runtime import Unavailable
from integration.cluster.site import LOCAL, free_ports
from integration.kafka_recipes.page import Recipe

REST = f"{LOCAL}:8083"  # on the page
START_S = 120.0
_CALL_S = 60.0


def rest_address() -> str:
    """A free address for the REST interface of a worker."""
    return f"{LOCAL}:{free_ports(1)[0]}"


class Worker:
    """The worker of a recipe, whose REST interface is at `rest`."""

    def __init__(self, recipe: Recipe, rest: str) -> None:
        self._rest = f"http://{rest}/connectors"
        self._process = recipe.process("java", "connect")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._process.__exit__(kind, error, trace)

    def start(self) -> None:
        """Start the worker; returns when it answers."""
        self._process.start()
        self._process.wait_until(lambda: self._get("") is not None, START_S, "it answers")

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def wait_for_tasks(self, connector: str) -> None:
        """Wait until the connector and its tasks run. Raises `Unavailable` with the trace of one
        that failed."""
        self._process.wait_until(lambda: self._runs(connector), START_S, f"{connector} runs")

    def _runs(self, connector: str) -> bool:
        status = self._get(f"/{connector}/status")
        if status is None:
            return False
        parts = [status["connector"], *status["tasks"]]
        for part in parts:
            if part["state"] == "FAILED":
                raise Unavailable(f"{connector} failed:\n{part['trace']}")
        return len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)

    def _get(self, path: str) -> Any:
        """An answer of the REST interface; None while there is none, as during a rebalance."""
        try:
            with urllib.request.urlopen(self._rest + path, timeout=_CALL_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):
                return None
            raise
        except OSError:
            return None
