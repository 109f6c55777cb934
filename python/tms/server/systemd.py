"""Notifications of the service to systemd (`Type=notify`): sd_notify's protocol, a datagram of
lines.

    $NOTIFY_SOCKET ◀── READY=1   RELOADING=1 … READY=1   WATCHDOG=1 …   STOPPING=1   STATUS=…

* Without `NOTIFY_SOCKET` nothing is sent. A datagram that cannot be sent is logged once; the
  service goes on.
* `WATCHDOG=1` is sent twice within `WATCHDOG_USEC`, by the loop whose life it proves.
* A child is given none of these variables (`without_systemd`): systemd listens to the main process.
"""

import asyncio
import os
import socket
from collections.abc import Mapping

from tms.runtime.events import EventLog

_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_SEND_TIMEOUT_S = 1.0  # systemd reads at once, unless the machine stands still
_log = EventLog("tms.server")


class SystemdNotifier:
    """Sends to the socket that the environment names. From any thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment) if address else 0.0
        self._failed = False

    @property
    def listens(self) -> bool:
        """True if systemd listens for notifications."""
        return bool(self._address)

    def ready(self, url: str) -> None:
        """Requests are answered, also after a reload."""
        self._send("READY=1", f"STATUS=Serving {url}")

    def reloading(self) -> None:
        """New certificates are being read; `ready` ends it."""
        self._send("RELOADING=1", "STATUS=Reading certificates")

    def stopping(self) -> None:
        """It drains."""
        self._send("STOPPING=1", "STATUS=Draining")

    def status(self, text: str) -> None:
        """Set the status line of `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split()))

    def alive(self) -> None:
        """The loop turns."""
        self._send("WATCHDOG=1")

    async def keep_alive(self) -> None:
        """Notify until cancelled, if systemd has a watchdog for this process."""
        while self.watchdog_s:
            self.alive()
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_TIMEOUT_S)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                _log.warning("systemd_not_told", line=lines[0], why=str(error))
            self._failed = True
        else:
            self._failed = False


def without_systemd(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child."""
    return {name: value for name, value in environment.items() if name not in _VARIABLES}


def _watchdog_s(environment: Mapping[str, str]) -> float:
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
