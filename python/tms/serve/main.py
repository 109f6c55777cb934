"""`tms serve`, the composition root of the service: everything is made from settings here.

    serve(settings)     blocks until SIGTERM or SIGINT; raises ConfigError, AlreadyRunning, …

* The ports are bound before the store is opened, and the event `ready` with the url is logged when
  requests are answered.
"""

import contextlib
import os
import signal
from collections.abc import Sequence
from functools import partial

from tms.model.setting import ConfiguredSetting
from tms.runtime.events import EventLog
from tms.runtime.tls import ClientTls
from tms.serve.config import Settings
from tms.serve.listeners import bind
from tms.serve.opening import open_in_time
from tms.serve.running import run_service
from tms.server import logs
from tms.server.systemd import SystemdNotifier

_log = EventLog("tms.server")


def serve(settings: Settings, told: Sequence[ConfiguredSetting] = ()) -> None:
    """Serve until a signal comes. `told`: the settings as the service shows them."""
    server = settings.server
    logs.configure(server.log_level, server.log_format, server.access_log)
    _check_certificates(settings)
    if settings.tls.cert or SystemdNotifier(os.environ).listens:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the files are looked at
    with contextlib.closing(bind(settings)) as listeners:
        if settings.server.workers > 1:
            from tms.serve.workers import supervise  # which others need not load

            supervise(settings, listeners, told)
        else:
            open_ = partial(open_in_time, settings, listeners)
            run_service(settings, listeners, open_, told=told)
    _log.info("stopped")


def _check_certificates(settings: Settings) -> None:
    """Raise `ConfigError` for files that cannot be used, before anything is opened."""
    own = settings.tls.own()
    if own is not None:
        own.context()
    for others in (settings.tls.peers(), ClientTls(settings.jwt.ca)):
        if others.ca or others.cert:
            others.context()
