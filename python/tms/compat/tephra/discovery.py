"""Registers the service in ZooKeeper, where Tephra's clients look for it.

    /discoverable/<name>/<32 hex>   ephemeral
    {"service":"<name>","hostname":"…","port":15165,"payload":[]}

Invariants

* Nothing waits for ZooKeeper: the service starts, answers and stops without it.
* Each session has a node of its own.
"""

from secrets import token_hex
from typing import Any

import msgspec

from tms.runtime.events import EventLog

_log = EventLog("tms.server")


class Registration:
    """Keeps one service registered while there is a session; see `cluster.sessions`."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self._folder = f"/discoverable/{name}"
        self._path = ""
        self._value = msgspec.json.encode(
            {"service": name, "hostname": host, "port": port, "payload": []}
        )

    def begin(self, zookeeper: Any) -> None:
        """Be registered."""
        self._path = f"{self._folder}/{token_hex(16)}"
        zookeeper.create(self._path, self._value, ephemeral=True, makepath=True)
        _log.info("zookeeper_registered", path=self._path)

    def look(self, zookeeper: Any) -> None:
        """Nodes of other services do not matter."""

    def interrupted(self) -> None:
        """The node is there as long as the session is."""

    def ended(self, lost: bool) -> None:
        """The node is gone."""
        if lost and self._path:
            _log.warning("zookeeper_session_lost", path=self._path)
