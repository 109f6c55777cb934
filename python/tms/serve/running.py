"""The service of one process, from an opened store to the end: engine, front ends, event loop.

* SIGTERM: /readyz says draining, no new work is taken, received requests are answered within
  `server.drain_s`, then the engine is closed. A second signal ends the wait. Over a store that
  other machines keep, closing takes as long at most: a store that does not answer keeps no process.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import uvloop

from tms.access.records import AccessRecords
from tms.api import messages
from tms.cluster.cluster import Cluster
from tms.cluster.ownership import Ownership
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.model.setting import ConfiguredSetting
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.events import EventLog
from tms.serve.config import Settings
from tms.serve.listeners import Listeners
from tms.serve.opening import raise_descriptor_limit
from tms.server import memory, starting
from tms.server.certificates import Certificates
from tms.server.front import Front, FrontTerms
from tms.server.service import AccessLimits, NetworkOptions, Service
from tms.server.serving import Server
from tms.server.systemd import SystemdNotifier
from tms.server.tracing import provide
from tms.store.base import Store

_log = EventLog("tms.server")
CLOSE_S_MIN = 1.0  # for closing, however short the drain time is
PROBES_MAX = 100  # connections that are answered before the store is open


def run_service(
    settings: Settings,
    listeners: Listeners,
    open_: Callable[[Clock, EngineConfig, int], tuple[Store, Ownership | Cluster | None]],
    welcomes: bool = True,
    told: Sequence[ConfiguredSetting] = (),
) -> None:
    """Serve on these listeners until a signal comes. `open_` takes a clock, a configuration and a
    number of descriptors, and returns the store. With `welcomes` the first administrator's token
    is printed here; else the process that started this one does it. `told`: the settings as the
    service shows them."""
    memory.configure()
    descriptors = raise_descriptor_limit()
    clock = SystemClock()
    lifetime_ms = settings.cdap.limits().tx_max_lifetime_ms
    config = replace(settings.engine.config(), transaction_lifetime_ms=lifetime_ms)
    with _answering_probes(settings, listeners, clock):
        store, owner = open_(clock, config, descriptors // 2)
        engine = _engine(store, clock, config, owner)
    try:
        if settings.server.confirm_clock:
            engine.confirm_clock()
        engine.start()
        engine.access.forget_peers()
        if welcomes:
            welcome(settings, engine.access)
        messages.arrow_schema()  # loads pyarrow, so that the first request need not
        limits = settings.limits
        connections = limits.connections(descriptors // 2)
        network = _network(settings)
        service = Service(engine, clock, limits.requests(), connections, network)
        service.settings.extend(told)
        if settings.server.is_open:
            service.warnings.append(
                f"Everybody who reaches {settings.server.host} may do everything: the service was "
                "started with --insecure."
            )
        memory.keep()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(service, settings, listeners, descriptors // 8))
    finally:
        engine.close()


def open_fronts(
    settings: Settings,
    service: Service,
    listeners: Listeners,
    clients_max: int,
    certificates: Certificates | None,
) -> list[Front]:
    """The front ends of a service, each with at most so many connections."""
    server = settings.server
    endpoints = listeners.endpoints(settings)
    opened = []
    for name, section in settings.fronts().items():
        listener = listeners.fronts.get(name)
        terms = FrontTerms(
            listener,
            server.host,
            server.is_guarded,
            clients_max,
            certificates,
            endpoints.get(name, ""),
        )
        opened.append(section.open(service, terms))
    return opened


def _engine(
    store: Store, clock: Clock, config: EngineConfig, owner: Ownership | Cluster | None
) -> Engine:
    try:
        return Engine(store, clock, config, owner=owner)
    except BaseException:
        if owner is not None:
            owner.release()
        raise


def _answering_probes(
    settings: Settings, listeners: Listeners, clock: Clock
) -> contextlib.AbstractContextManager[None]:
    """While this lasts, probes are answered. Not by workers: those that have opened their store
    answer on the listener that all of them share."""
    if settings.server.workers > 1:
        return contextlib.nullcontext()
    own = settings.tls.own()
    certificates = (lambda: None) if own is None else partial(Certificates, own)
    limits = settings.limits.connections(PROBES_MAX)
    return starting.answering(listeners.http, limits, clock, certificates)


def _network(settings: Settings) -> NetworkOptions:
    server = settings.server
    access = AccessLimits(server.audit == "all", settings.jwt.options())
    return NetworkOptions(
        access if server.is_guarded else None,
        settings.tls.peers(),
        server.pages(),
        server.access_log,
        server.names(),
    )


def welcome(settings: Settings, records: AccessRecords) -> None:
    """Print the token that makes the first administrator, if there is none. It stands in no log:
    only the terminal or journal of the process has it."""
    server = settings.server
    if not server.is_guarded or (records.has_administrator and not server.new_administrator):
        return
    print(  # noqa: T201
        "This service requires a token. To create an administrator, run:\n\n"
        f"    TMS_TOKEN={records.first_token()} tms token create NAME\n\n"
        "That token is valid for this one call, and until the service starts again.",
        file=sys.stderr,
        flush=True,
    )


async def _serve(
    service: Service, settings: Settings, listeners: Listeners, clients_max: int
) -> None:
    own = settings.tls.own()
    certificates = None if own is None else Certificates(own)
    fronts = open_fronts(settings, service, listeners, clients_max, certificates)
    systemd = SystemdNotifier(os.environ)
    provide(os.environ)
    server = Server(service, settings.server.drain_s, fronts, certificates, systemd)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.ask_to_stop()
        if settings.data is None:
            drain_s = settings.server.drain_s
            end_after(drain_s + max(drain_s, CLOSE_S_MIN))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    beside = [
        asyncio.create_task(memory.trim_regularly(service)),
        asyncio.create_task(service.histories.sampler.run(service.in_thread)),
        asyncio.create_task(systemd.keep_alive()),
    ]
    if service.issuer is not None:
        beside.append(asyncio.create_task(service.issuer.keep_fresh()))
    if certificates is not None:
        beside.append(asyncio.create_task(certificates.watch()))
    if certificates is not None or systemd.listens:
        loop.add_signal_handler(signal.SIGHUP, server.ask_to_reload)
    try:
        await server.serve(*listeners.http)
    finally:
        for task in beside:
            task.cancel()


def end_after(seconds: float, end: Callable[[int], object] = os._exit) -> None:
    """End the process once this time has passed, if it has not ended by then. Everything
    acknowledged is stored, and the next owner waits no longer than after a crash."""

    def give_up() -> None:
        _log.warning("closing_incomplete", after_s=seconds, next_step="look at the store")
        end(os.EX_OK)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
