"""Registers the service in ZooKeeper, where Tephra's clients look for it: the one file that knows
kazoo.

    /discoverable/<name>/<32 hex>   ephemeral
    {"service":"<name>","hostname":"…","port":15165,"payload":[]}

Invariants

* Nothing waits for ZooKeeper but this file's own thread; the service starts, answers and stops
  without it.
* One session at a time: when it is lost, its node goes with it, and a new session gets a new node.
  One that is interrupted for longer than `ABANDON_S` is given up.
* Between attempts there is a pause that grows up to `PAUSE_S_MAX`; an outage is logged once.
"""

import logging
import threading
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import msgspec
from kazoo.client import KazooClient, KazooState

from tms.events import EventLog

SESSION_S = 10.0
ABANDON_S = 3 * SESSION_S
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
STOP_S = 5.0
_log = EventLog("tms.server")


def session(quorum: str) -> Any:
    """A session with this quorum, not connected yet."""
    silent = logging.getLogger("tms.kazoo")  # it tells of every attempt, we once
    silent.setLevel(logging.CRITICAL + 1)
    return KazooClient(
        hosts=quorum,
        timeout=SESSION_S,
        connection_retry={"max_tries": -1, "max_delay": PAUSE_S_MAX},
        logger=silent,
    )


class Registration:
    """Keeps one service registered until it is stopped."""

    def __init__(self, connect: Callable[[], Any], name: str, host: str, port: int) -> None:
        self._connect = connect
        self._folder = f"/discoverable/{name}"
        self._value = msgspec.json.encode(
            {"service": name, "hostname": host, "port": port, "payload": []}
        )
        self._pause_s = PAUSE_S / 2
        self._state = ""
        self._changed = threading.Event()  # the state, or `stop` was called
        self._stopping = False
        self._away = False
        self._registered = False  # or about to be
        self._thread = threading.Thread(target=self._run, name="tms-discovery", daemon=True)

    def start(self) -> None:
        """Begin, in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Take the node away, if there is one; waits for that at most `STOP_S`."""
        self._stopping = True
        self._changed.set()
        if self._registered:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._keep()
            except Exception as error:  # whatever it is, the service goes on
                if not self._away:
                    _log.warning("zookeeper_unreachable", error=repr(error)[:200])
                self._away = True
                self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
            self._changed.clear()
            if not self._stopping:
                self._changed.wait(self._pause_s)

    def _keep(self) -> None:
        """Be registered for as long as one session lasts."""
        zookeeper, self._state = self._connect(), ""
        try:
            zookeeper.add_listener(self._listen)
            zookeeper.start(SESSION_S)
            self._registered = True
            if self._stopping:
                return
            path = f"{self._folder}/{token_hex(16)}"
            zookeeper.create(path, self._value, ephemeral=True, makepath=True)
            self._away, self._pause_s = False, PAUSE_S
            _log.info("zookeeper_registered", path=path)
            self._wait_for_end()
            if not self._stopping:
                _log.warning("zookeeper_session_lost", path=path)
        finally:
            try:
                zookeeper.stop()
            finally:
                zookeeper.close()
                self._registered = False

    def _wait_for_end(self) -> None:
        """Until the session is lost or `stop` is called."""
        there = True
        while there:
            self._changed.clear()
            if self._stopping or self._state == KazooState.LOST:
                return
            interrupted = self._state == KazooState.SUSPENDED
            there = self._changed.wait(ABANDON_S if interrupted else None)

    def _listen(self, state: str) -> None:
        self._state = state
        self._changed.set()
