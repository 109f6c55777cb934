"""The certificate of the service: its files are read at the start, and again once they change.

    files ──every LOOK_S, or when asked (SIGHUP)──▶ a new context ──▶ connections from now on

* New files that cannot be used are logged once, and the context stays.
* Connections keep what they began with, until they end.
"""

import asyncio
import ssl

from tms.errors import ConfigError
from tms.runtime.events import EventLog
from tms.runtime.tls import ServerTls

LOOK_S = 2.0
_log = EventLog("tms.server")


class Certificates:
    """Has the context for the next connection. Raises `ConfigError` when the files cannot be used
    from the beginning."""

    def __init__(self, files: ServerTls) -> None:
        self._files = files
        self._stamp = files.stamp()  # before they are read: what changes meanwhile is seen
        self._context = files.context()

    def newest(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        return self._context

    async def watch(self) -> None:
        """Look for changes until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self, asked: bool = False) -> None:
        """Read the files if they have changed, or if `asked`."""
        stamp = self._files.stamp()
        if stamp == self._stamp and not asked:
            return
        self._stamp = stamp
        try:
            self._context = self._files.context()
        except ConfigError as error:
            _log.error("certificate_not_reloaded", cert=self._files.cert, why=error.message)
        else:
            _log.info("certificate_reloaded", cert=self._files.cert)
