"""The settings of the service, by section: their defaults, their bounds, and what they make.

* Settings that contradict each other are a fault, with the next step in its text.
"""

import re
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tms.access.jwt import ALGORITHMS, ALGORITHMS_DEFAULT, JwtRules
from tms.cluster.ownership import OwnerLimits
from tms.cluster.placement import CAPACITY_MAX
from tms.compat.cdap.settings import CdapSection
from tms.compat.kafka.settings import KafkaSection
from tms.compat.tephra.settings import TephraSection
from tms.console.settings import ConsoleSection
from tms.engine.config import CompactionLimits, EngineConfig
from tms.log.partition import LogLimits
from tms.runtime.tls import ClientTls, ServerTls
from tms.server.front import FrontSection, Section
from tms.server.http.cors import EVERY_ORIGIN, Cors, origins_in
from tms.server.http.strangers import hosts_in
from tms.server.http.watchdog import ConnectionLimits
from tms.server.issuer import IssuerOptions
from tms.server.service import RequestLimits

SESSION_S = 10.0  # that an instance is not heard of, and the others take it for dead
_COMPACTION = CompactionLimits()
_OWNER = OwnerLimits()
_ENGINE = EngineConfig()
_LOG = LogLimits()
_REQUESTS = RequestLimits()
_CONNECTIONS = ConnectionLimits()
_MIB = 1 << 20


class ServerSection(Section):
    """The listener, access control, logging and the place in a cluster."""

    host: str = "127.0.0.1"
    port: int = Field(default=7070, ge=0, le=65_535)
    insecure: bool = False
    access: Literal["auto", "on", "off"] = "auto"
    audit: Literal["changes", "all"] = "changes"
    new_administrator: bool = False
    cors: str = ""
    hosts: str = ""
    drain_s: float = Field(default=10.0, ge=0, le=3_600)
    confirm_clock: bool = False
    take_over: bool = False
    instance: str = Field(default="", pattern=r"^[A-Za-z0-9_.:-]{0,128}$")
    advertise: str = Field(default="", pattern=r"^$|^https?://[^/?#\s]+$")
    capacity: int = Field(default=1, ge=1, le=CAPACITY_MAX)
    workers: int = Field(default=1, ge=1, le=64)
    session_s: float = Field(default=SESSION_S, ge=0.1, le=600)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"
    access_log: bool = False

    @property
    def is_guarded(self) -> bool:
        """True if requests need a principal: by default, if other machines reach the listener."""
        if self.access == "auto":
            return not self.insecure and not _is_local(self.host)
        return self.access == "on"

    @property
    def is_open(self) -> bool:
        """True if every client on other machines may do everything."""
        return not self.is_guarded and not _is_local(self.host)

    def pages(self) -> Cors | None:
        """The origins whose pages may read answers; None: none."""
        origins = origins_in(self.cors)
        return Cors(origins) if origins else None

    def names(self) -> frozenset[str]:
        """The names by which the service is reached, besides those that are local."""
        own = urlsplit(self.advertise).hostname or self.host
        return hosts_in(self.hosts) | {own.lower()}

    @model_validator(mode="after")
    def _names_origins(self) -> Self:
        try:
            hosts_in(self.hosts)
        except ValueError as exc:
            raise ValueError(f"hosts: {exc}") from exc
        try:
            origins = origins_in(self.cors)
        except ValueError as exc:
            raise ValueError(f"cors: {exc}") from exc
        if EVERY_ORIGIN in origins and not self.is_guarded and not self.insecure:
            raise ValueError(
                "cors is `*`, and nobody is asked for a token: whatever page somebody here opens "
                "may do everything; name the origins, or add --access on, or accept that with "
                "--insecure"
            )
        return self

    @model_validator(mode="after")
    def _only_local(self) -> Self:
        if self.is_open and not self.insecure:
            raise ValueError(
                f"{self.host} can be reached from other machines, and without access control "
                "everybody there may do everything; listen on 127.0.0.1, leave out --access off, "
                "or accept that with --insecure"
            )
        if self.access == "on" and self.insecure:
            raise ValueError("access is on, so nothing is insecure; leave out one of the two")
        return self


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class LimitsSection(Section):
    """Bounds of requests and connections. Beyond them: 4xx, or the connection is closed."""

    body_bytes_max: int = Field(default=_REQUESTS.body_bytes_max, ge=1_024, le=1 << 30)
    publish_bytes_in_flight_max: int = Field(default=_REQUESTS.publish_bytes_in_flight_max, ge=_MIB)
    fetch_bytes_in_flight_max: int = Field(default=_REQUESTS.fetch_bytes_in_flight_max, ge=_MIB)
    fetch_bytes_max: int = Field(default=_REQUESTS.fetch_bytes_max, ge=1, le=1 << 30)
    fetch_wait_ms_max: int = Field(default=_REQUESTS.fetch_wait_ms_max, ge=0, le=3_600_000)
    publish_timeout_s: float = Field(default=_REQUESTS.publish_timeout_s, gt=0, le=3_600)
    budget_wait_s: float = Field(default=_REQUESTS.budget_wait_s, ge=0, le=60)
    threads: int = Field(default=_REQUESTS.threads, ge=1, le=256)
    connections_max: int = Field(default=_CONNECTIONS.connections_max, ge=1)
    url_bytes_max: int = Field(default=_CONNECTIONS.url_bytes_max, ge=256, le=_MIB)
    header_bytes_max: int = Field(default=_CONNECTIONS.header_bytes_max, ge=1_024, le=_MIB)
    headers_max: int = Field(default=_CONNECTIONS.headers_max, ge=10, le=10_000)
    head_timeout_s: float = Field(default=_CONNECTIONS.head_timeout_s, ge=1, le=600)
    body_timeout_s: float = Field(default=_CONNECTIONS.body_timeout_s, ge=1, le=600)
    body_bytes_per_s_min: int = Field(default=_CONNECTIONS.body_bytes_per_s_min, ge=0)
    write_timeout_s: float = Field(default=_CONNECTIONS.write_timeout_s, ge=1, le=600)
    keep_alive_s: float = Field(default=_CONNECTIONS.keep_alive_s, ge=1, le=86_400)

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.publish_bytes_in_flight_max < self.body_bytes_max:
            raise ValueError("publish_bytes_in_flight_max is less than body_bytes_max")
        return self

    def requests(self) -> RequestLimits:
        """The bounds of requests."""
        return RequestLimits(**{f.name: getattr(self, f.name) for f in fields(RequestLimits)})

    def connections(self, connections_max: int) -> ConnectionLimits:
        """The bounds of connections, at most `connections_max` of them."""
        limits = {f.name: getattr(self, f.name) for f in fields(ConnectionLimits)}
        limits["connections_max"] = min(self.connections_max, connections_max)
        return ConnectionLimits(**limits)


class TlsSection(Section):
    """With a certificate the service speaks TLS only."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    client_auth: Literal["", "required", "optional"] = ""  # required, once there is a client_ca
    ca: str = ""

    @model_validator(mode="after")
    def _there_is_a_certificate(self) -> Self:
        for name in ("key", "client_ca", "client_auth"):
            if not self.cert and getattr(self, name):
                raise ValueError(f"{name} is given without a certificate; give --tls-cert too")
        if self.client_auth and not self.client_ca:
            raise ValueError(
                "client_auth is given, but no CA that signs clients' certificates; give "
                "--tls-client-ca too"
            )
        return self

    def own(self) -> ServerTls | None:
        """The certificate of its listener; None: it speaks no TLS."""
        if not self.cert:
            return None
        return ServerTls(self.cert, self.key, self.client_ca, self.client_auth != "optional")

    def peers(self) -> ClientTls:
        """The TLS of requests to other instances, with its own certificate."""
        return ClientTls(self.ca, self.cert, self.key)


class JwtSection(Section):
    """Tokens of an issuer that the service trusts. Without its keys there are none."""

    jwks: str = ""
    issuer: str = ""
    audience: str = ""
    principal: str = Field(default="sub", min_length=1, max_length=255)
    algorithms: str = ",".join(ALGORITHMS_DEFAULT)
    leeway_s: float = Field(default=30.0, ge=0, le=600)
    refresh_s: float = Field(default=300.0, ge=1, le=86_400)
    stale_s: float = Field(default=86_400.0, ge=1, le=2_592_000)
    timeout_s: float = Field(default=5.0, gt=0, le=60)
    ca: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name in ("issuer", "audience", "ca"):
            if not self.jwks and getattr(self, name):
                raise ValueError(f"{name} is given without its keys; give --jwt-jwks too")
        for name in ("issuer", "audience"):
            if self.jwks and not getattr(self, name):
                raise ValueError(
                    f"jwks is given without {name}; give --jwt-{name} too, so that a token that "
                    "was made for another service is worth nothing here"
                )
        strange = self.algorithm_names() - set(ALGORITHMS)
        if strange or not self.algorithm_names():
            raise ValueError(
                f"algorithms: {', '.join(sorted(strange)) or 'none'}; they are some of "
                f"{', '.join(ALGORITHMS)}, all of which have a public key"
            )
        return self

    @model_validator(mode="after")
    def _is_read_safely(self) -> Self:
        if "://" not in self.jwks:
            return self
        try:
            url = urlsplit(self.jwks)
            known = url.scheme == "https" or (
                url.scheme == "http" and _is_local(url.hostname or "")
            )
            whole = url.hostname and url.port != 0 and not (url.username or url.fragment)
        except ValueError:  # of the port
            known = whole = False
        if not (known and whole and re.fullmatch("[!-~]+", self.jwks)):
            raise ValueError(
                "jwks is an URL https://HOST/PATH, http:// on this machine only, or the path of a "
                f"file; got {self.jwks!r:.200}. Who could change the keys on their way could be "
                "anybody"
            )
        return self

    def algorithm_names(self) -> frozenset[str]:
        """The algorithms that may sign a token."""
        return frozenset(name.strip() for name in self.algorithms.split(",") if name.strip())

    def options(self) -> IssuerOptions | None:
        """The values as the service takes them; None: no issuer is trusted."""
        if not self.jwks:
            return None
        algorithms = self.algorithm_names()
        rules = JwtRules(self.issuer, self.audience, self.principal, algorithms, self.leeway_s)
        tls = ClientTls(self.ca)
        return IssuerOptions(self.jwks, rules, tls, self.refresh_s, self.stale_s, self.timeout_s)


class EngineSection(Section):
    """Bounds of the engine."""

    cache_bytes: int = Field(default=_ENGINE.cache_bytes, ge=0)
    in_flight_bytes: int = Field(default=_ENGINE.in_flight_bytes, ge=_MIB)
    block_bytes: int = Field(default=_ENGINE.block_bytes, ge=_MIB)
    topics: int = Field(default=_ENGINE.topics, ge=1)
    threads: int = Field(default=_ENGINE.threads, ge=1, le=256)
    cleaner_interval_s: float = Field(default=_ENGINE.cleaner_interval_s, gt=0)
    segment_bytes: int = Field(default=_LOG.segment_bytes, ge=_MIB)
    segment_ms: int = Field(default=_LOG.segment_ms, ge=1_000)
    queue_bytes: int = Field(default=_LOG.queue_bytes, ge=_MIB)
    producers: int = Field(default=_LOG.producers, ge=1)
    compaction_share: float = Field(default=_COMPACTION.share, gt=0, le=1)
    compaction_dirty_ratio: float = Field(default=_COMPACTION.dirty_ratio, ge=0, le=1)
    compaction_keys_max: int = Field(default=_COMPACTION.keys_max, ge=1_000)
    owner_beat_s: float = Field(default=_OWNER.beat_s, gt=0, le=60)
    owner_silent_s: float = Field(default=_OWNER.silent_s, gt=0, le=600)

    @model_validator(mode="after")
    def _owners_are_heard(self) -> Self:
        if self.owner_silent_s < 2 * self.owner_beat_s:
            raise ValueError("owner_silent_s is less than twice owner_beat_s")
        return self

    def config(self) -> EngineConfig:
        """The values as the engine takes them."""
        settings = self.model_dump()
        names = {f.name for f in fields(LogLimits)}
        log = LogLimits(**{name: settings.pop(name) for name in names & settings.keys()})
        compaction = CompactionLimits(
            settings["cleaner_interval_s"],
            settings.pop("compaction_share"),
            settings.pop("compaction_dirty_ratio"),
            settings.pop("compaction_keys_max"),
        )
        owner = OwnerLimits(settings.pop("owner_beat_s"), settings.pop("owner_silent_s"))
        return EngineConfig(**settings, log=log, compaction=compaction, owner=owner)


class LevelDBSection(Section):
    """Bounds of the store in a directory."""

    write_buffer_bytes: int = Field(default=8 * _MIB, ge=_MIB, le=256 * _MIB)


class HBaseSection(Section):
    """Bounds of the store in HBase."""

    connections: int = Field(default=16, ge=1, le=1_024)
    connect_timeout_s: float = Field(default=5.0, gt=0, le=600)
    call_timeout_s: float = Field(default=30.0, gt=0, le=3_600)


class Settings(Section):
    """Everything that can be configured; see docs/operations.md. `load` reads it."""

    data: Path | None = None
    store: str = Field(default="", pattern=r"^$|^hbases?://")
    cluster: str = Field(default="", pattern=r"^$|^zookeepers?://")
    server: ServerSection = ServerSection()
    limits: LimitsSection = LimitsSection()
    engine: EngineSection = EngineSection()
    leveldb: LevelDBSection = LevelDBSection()
    hbase: HBaseSection = HBaseSection()
    console: ConsoleSection = ConsoleSection()
    cdap: CdapSection = CdapSection()
    kafka: KafkaSection = KafkaSection()
    tephra: TephraSection = TephraSection()
    tls: TlsSection = TlsSection()
    jwt: JwtSection = JwtSection()

    def fronts(self) -> dict[str, FrontSection]:
        """The sections of the front ends, by their names."""
        return {name: section for name, section in self if isinstance(section, FrontSection)}

    @model_validator(mode="after")
    def _there_is_one_place(self) -> Self:
        if self.data is None and not self.store:
            raise ValueError("data: missing; give --data, TMS__DATA, a file, or --store")
        if self.data is not None and self.store:
            raise ValueError("data: there is a store too; messages are kept in one place")
        if self.cluster and not self.store:
            raise ValueError(
                "cluster: its instances keep everything in one store that all of them reach; give "
                "--store hbase://HOST:PORT"
            )
        if self.jwt.jwks and not self.server.is_guarded:
            raise ValueError(
                "jwt.jwks: nobody is asked who it is, so nobody shows a token; give --access on"
            )
        if self.server.workers > 1 and self.data is None:
            raise ValueError(
                "server.workers: workers divide a data directory; of a store that machines share, "
                "start several instances (--cluster)"
            )
        for name, section in self.fronts().items():
            section.require_ports(name, self.server.workers)
        return self
