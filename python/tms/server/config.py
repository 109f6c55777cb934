"""The configuration of the service: a TOML file, the environment and flags, in rising precedence.

    data = "/var/lib/tms"           TMS__DATA            --data       or
    store = "hbase://host:9090"     TMS__STORE           --store
    [server]
    port = 7070                     TMS__SERVER__PORT    --port

* All faults are reported at once, each with its key, what is wrong and where it was said.
* Any key may be said by a file, as secrets of containers are: TMS__SECTION__KEY_FILE names it. No
  error shows what stands in it.
* An unknown key is a fault, also in the environment below `TMS__`, and names the nearest one.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tms.access.jwt import ALGORITHMS, ALGORITHMS_DEFAULT, JwtRules
from tms.cluster.ownership import OwnerLimits
from tms.cluster.placement import CAPACITY_MAX
from tms.compat.tephra.frames import FrameLimits
from tms.engine import CompactionLimits, EngineConfig
from tms.errors import ConfigError
from tms.log.partition import LogLimits
from tms.server.http.cors import EVERY_ORIGIN, Cors, origins_in
from tms.server.http.watchdog import ConnectionLimits
from tms.server.issuer import IssuerOptions
from tms.server.service import CdapLimits, RequestLimits
from tms.tls import ClientTls, ServerTls

ENV_PREFIX = "TMS__"
_SEPARATOR, _FILE = "__", "_FILE"
_BY_FILE = "file of the environment variable "
_SECRET_CHARS_MAX = 65_536
SESSION_S = 10.0  # that an instance is not heard of, and the others take it for dead
_COMPACTION = CompactionLimits()
_OWNER = OwnerLimits()
_ENGINE, _LOG, _REQUESTS, _CONNECTIONS, _CDAP, _FRAMES = (
    EngineConfig(),
    LogLimits(),
    RequestLimits(),
    ConnectionLimits(),
    CdapLimits(),
    FrameLimits(),
)
_QUORUM = r"^$|^[\w.-]+:\d{1,5}(,[\w.-]+:\d{1,5})*(/[\w./-]+)?$"
_MIB = 1 << 20
_JAVA_INT_MAX = 2**31 - 1  # what CDAP's own settings take


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSection(_Section):
    """Where the service listens and how it logs."""

    host: str = "127.0.0.1"
    port: int = Field(default=7070, ge=0, le=65_535)
    insecure: bool = False
    access: Literal["auto", "on", "off"] = "auto"
    audit: Literal["changes", "all"] = "changes"
    new_administrator: bool = False
    cors: str = ""
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

    @property
    def is_guarded(self) -> bool:
        """Whether who asks has to say who it is: by default where other machines can."""
        if self.access == "auto":
            return not self.insecure and not _is_local(self.host)
        return self.access == "on"

    @property
    def is_open(self) -> bool:
        """Whether anybody on other machines may do everything."""
        return not self.is_guarded and not _is_local(self.host)

    def pages(self) -> Cors | None:
        """Which pages of other origins may read answers."""
        origins = origins_in(self.cors)
        return Cors(origins) if origins else None

    @model_validator(mode="after")
    def _names_origins(self) -> Self:
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


class LimitsSection(_Section):
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
        """The part that concerns requests."""
        return RequestLimits(**{f.name: getattr(self, f.name) for f in fields(RequestLimits)})

    def connections(self, connections_max: int) -> ConnectionLimits:
        """The part that concerns connections, at most `connections_max` of them."""
        limits = {f.name: getattr(self, f.name) for f in fields(ConnectionLimits)}
        limits["connections_max"] = min(self.connections_max, connections_max)
        return ConnectionLimits(**limits)


class TephraSection(_Section):
    """Apache Tephra's protocol. Without a port it is not spoken."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    zookeeper: str = Field(default="", pattern=_QUORUM)
    discovery_name: str = Field(default="transaction", pattern=r"^[\w.-]{1,100}$")
    clients_max: int = Field(default=_FRAMES.clients_max, ge=1)
    workers: int = Field(default=_FRAMES.workers, ge=1, le=256)
    frame_timeout_s: float = Field(default=_FRAMES.frame_timeout_s, ge=1, le=600)
    allow: str = "127.0.0.0/8,::1"

    @model_validator(mode="after")
    def _allows_networks(self) -> Self:
        try:
            self.networks()
        except ValueError as exc:
            raise ValueError(f"allow: {exc}; networks are like 10.0.0.0/8,::1") from exc
        return self

    @model_validator(mode="after")
    def _there_is_something_to_register(self) -> Self:
        if self.zookeeper and self.port is None:
            raise ValueError("zookeeper is given without a port; give --tephra-port too")
        return self

    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Who may connect where access is controlled."""
        return tuple(ip_network(text.strip()) for text in self.allow.split(",") if text.strip())

    def limits(self, clients_max: int, is_guarded: bool) -> FrameLimits:
        """The bounds of connections, at most `clients_max` of them."""
        allow = self.networks() if is_guarded else None
        clients_max = min(self.clients_max, clients_max)
        return FrameLimits(clients_max, self.workers, self.frame_timeout_s, allow)


class TlsSection(_Section):
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
        """What its listener has; none: it speaks no TLS."""
        if not self.cert:
            return None
        return ServerTls(self.cert, self.key, self.client_ca, self.client_auth != "optional")

    def peers(self) -> ClientTls:
        """How it asks other instances: as who it is itself."""
        return ClientTls(self.ca, self.cert, self.key)


class JwtSection(_Section):
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
        """Those that a token may be signed by."""
        return frozenset(name.strip() for name in self.algorithms.split(",") if name.strip())

    def options(self) -> IssuerOptions | None:
        """As the service wants it; None: no issuer is trusted."""
        if not self.jwks:
            return None
        algorithms = self.algorithm_names()
        rules = JwtRules(self.issuer, self.audience, self.principal, algorithms, self.leeway_s)
        tls = ClientTls(self.ca)
        return IssuerOptions(self.jwks, rules, tls, self.refresh_s, self.stale_s, self.timeout_s)


class EngineSection(_Section):
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
        """As the engine wants it."""
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


class LevelDBSection(_Section):
    """Bounds of the store in a directory."""

    write_buffer_bytes: int = Field(default=8 * _MIB, ge=_MIB, le=256 * _MIB)


class HBaseSection(_Section):
    """Bounds of the store in HBase."""

    connections: int = Field(default=16, ge=1, le=1_024)
    connect_timeout_s: float = Field(default=5.0, gt=0, le=600)
    call_timeout_s: float = Field(default=30.0, gt=0, le=3_600)


class CdapSection(_Section):
    """CDAP's protocol."""

    chunk_bytes: int = Field(default=_CDAP.chunk_bytes, ge=1_024, le=_MIB)
    tx_max_lifetime_s: int = Field(
        default=_CDAP.tx_max_lifetime_ms // 1_000, ge=1, le=_JAVA_INT_MAX
    )
    ttl_s: int = Field(default=_CDAP.ttl_s, ge=1, le=_JAVA_INT_MAX)

    def limits(self) -> CdapLimits:
        """As the service wants it."""
        return CdapLimits(self.chunk_bytes, self.tx_max_lifetime_s * 1_000, self.ttl_s)


class Settings(_Section):
    """Everything that can be configured; see docs/operations.md. `load` reads it."""

    data: Path | None = None
    store: str = Field(default="", pattern=r"^$|^hbases?://")
    cluster: str = Field(default="", pattern=r"^$|^zookeepers?://")
    server: ServerSection = ServerSection()
    limits: LimitsSection = LimitsSection()
    engine: EngineSection = EngineSection()
    leveldb: LevelDBSection = LevelDBSection()
    hbase: HBaseSection = HBaseSection()
    cdap: CdapSection = CdapSection()
    tephra: TephraSection = TephraSection()
    tls: TlsSection = TlsSection()
    jwt: JwtSection = JwtSection()

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
        return self


def load(file: Path | None, flags: Mapping[str, object]) -> Settings:
    """The settings from a file, the environment and flags (`{"server.port": 7070}`).

    Raises `ConfigError` that lists every fault.
    """
    text, values = _read(file)
    sources = _Sources(file, text, values, flags)
    merged = _merged(_merged(values, _nested(sources.environment())), _nested(flags))
    try:
        return Settings(**merged)
    except ValidationError as exc:
        faults = [_fault(error, sources) for error in exc.errors()]
        count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(f"The configuration has {count}:\n  " + "\n  ".join(faults)) from exc


def flag_of(key: str) -> str:
    """The flag that says this key: its last part; with the section before it where another section
    has the same, other than `server`, for `tls`, as clients have --cert and --key, and for `jwt`,
    whose parts say little alone."""
    section, _, last = key.rpartition(".")
    alone = sum(other.rpartition(".")[2] == last for other in _known_keys()) == 1
    short = section == "server" or (alone and section not in ("tls", "jwt"))
    name = last if short else f"{section}-{last}"
    return f"--{name.replace('_', '-')}"


class _Sources:
    """Where a value was said."""

    def __init__(
        self, file: Path | None, text: str, values: dict[str, Any], flags: Mapping[str, object]
    ) -> None:
        self._file = file
        self._text = text
        self._values = values
        self._flags = flags
        self._variables = {name.upper(): name for name in sorted(os.environ)}

    def environment(self) -> dict[str, str]:
        """What variables below `TMS__` say, by key; with `_FILE` behind it one names a file with
        the value. Raises `ConfigError`."""
        said: dict[str, str] = {}
        for upper, name in self._variables.items():
            if not upper.startswith(ENV_PREFIX):
                continue
            key = upper.removeprefix(ENV_PREFIX).lower().replace(_SEPARATOR, ".")
            in_file = self._key_in_file(key)
            if (in_file or key) in said:
                raise ConfigError(
                    f"{in_file or key} is said by two environment variables, itself and by a file: "
                    f"unset {name} or the other one."
                )
            said[in_file or key] = os.environ[name] if in_file is None else _in_file(name)
        return said

    @staticmethod
    def _key_in_file(key: str) -> str | None:
        """The key whose value a variable names the file of; None for any other variable."""
        known, without = set(_known_keys()), key.removesuffix(_FILE.lower())
        return without if without != key and key not in known and without in known else None

    def place(self, keys: tuple[str, ...]) -> str:
        """The flag, variable or line that said these keys; the strongest one."""
        if ".".join(keys) in self._flags:
            return f"flag {flag_of('.'.join(keys))}"
        wanted = ENV_PREFIX + _SEPARATOR.join(keys).upper()
        for variable, name in self._variables.items():
            if variable == wanted or variable.startswith(wanted + _SEPARATOR):
                return f"environment variable {name}"
            if variable == wanted + _FILE:
                return f"{_BY_FILE}{name}, {os.environ[name]}"
        if self._file is not None and _has(self._values, keys):
            return f"{self._file}, line {self._line(keys)}"
        return "not given"

    def _line(self, keys: tuple[str, ...]) -> int:
        table: tuple[str, ...] = ()
        for number, line in enumerate(self._text.splitlines(), 1):
            if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
                table = tuple(header[1].split("."))
                if table == keys:
                    return number
            elif (key := re.match(r"\s*([\w.-]+)\s*=", line)) and (
                table + tuple(key[1].split("."))
            ) in (keys, keys[:-1]):
                return number
        return 1


def _in_file(variable: str) -> str:
    """What stands in the file that a variable names, without the white space around it."""
    path = os.environ[variable]
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_SECRET_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"The file {path!r} that the environment variable {variable} names cannot be read: "
            f"{why}."
        ) from exc
    if len(text) > _SECRET_CHARS_MAX:
        raise ConfigError(
            f"The file {path!r} that the environment variable {variable} names has more than "
            f"{_SECRET_CHARS_MAX} characters: it is no value of a setting."
        )
    return text.strip()


def _read(file: Path | None) -> tuple[str, dict[str, Any]]:
    if file is None:
        return "", {}
    try:
        text = file.read_text("utf-8")
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"The configuration file {file} is not TOML: {exc}.") from exc
    except RecursionError as exc:
        raise ConfigError(f"The configuration file {file} is nested too deeply.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The configuration file {file} cannot be read: {exc}.") from exc


def _fault(error: Any, sources: _Sources) -> str:
    keys = tuple(str(part) for part in error["loc"])
    if not keys:  # of all settings together: the message names them
        return str(error["msg"]).removeprefix("Value error, ")
    place = sources.place(keys)
    if error["type"] == "extra_forbidden":
        return _unknown(keys, place)
    hidden = isinstance(error["input"], dict | BaseModel) or place.startswith(_BY_FILE)
    got = "" if hidden else f", got {error['input']!r:.80}"
    return f"{'.'.join(keys)}: {error['msg'].removeprefix('Value error, ')}{got} ({place})"


def _unknown(keys: tuple[str, ...], place: str) -> str:
    """Says which known key is nearest: in the same section, else anywhere."""
    known = list(_known_keys())
    name = ".".join(keys)
    near = difflib.get_close_matches(name, known, 1, 0.7)
    if not near:
        last = {key.rpartition(".")[2]: key for key in known}
        near = [last[key] for key in difflib.get_close_matches(keys[-1], last, 1, 0.6)]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name}: there is no such key{hint} ({place})"


def _known_keys() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Section):
            yield from (f"{name}.{key}" for key in field.annotation.model_fields)


def _nested(flags: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        *sections, key = name.split(".")
        inner = nested
        for section in sections:
            if not isinstance(inner.get(section), dict):
                inner[section] = {}
            inner = inner[section]
        inner[key] = value
    return nested


def _merged(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(weak)
    for name, value in strong.items():
        below = merged.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[name] = _merged(below, value)
        else:
            merged[name] = value
    return merged


def _has(values: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    inner: Any = values
    for key in keys:
        if not isinstance(inner, dict) or key not in inner:
            return False
        inner = inner[key]
    return True
