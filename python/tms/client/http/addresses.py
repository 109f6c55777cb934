"""The addresses of a service: its instances, and their partitions and shards, as answers have said.

Invariants

* Any instance answers any request: what is not known here, or is wrong, costs a hop.
* An instance that was not reached is not gone to because of what it keeps for `SHUNNED_S`: clients
  may be where the addresses lead nowhere that instances have for one another. One that says it is
  on this very machine is believed only by who was told the same.
* That an instance is away is logged once, and once that it is there again.
* Connections go straight to the service; a proxy that the environment names for it is logged.
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tms.api import routes
from tms.api.operations import ShardKey
from tms.errors import ConfigError, Unavailable
from tms.model.topic import TopicName
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.events import BoundedLog
from tms.runtime.tls import ClientTls

if TYPE_CHECKING:
    import ssl

SHUNNED_S = 10.0
PLACES_MAX = 100_000  # whose owners are known; with one more all are learned anew
OWNER = routes.OWNER_HEADER.lower().encode()
OwnerKey = tuple[TopicName, int] | ShardKey  # a partition or a shard, which has one owner
_log = BoundedLog(__name__)


class ServiceAddress:
    """The address of a service or instance, from its URL. `given`: by the program, not by an
    answer. Raises `ConfigError`."""

    def __init__(self, url: str, given: bool = True) -> None:
        self.given = given
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as exc:
            raise ConfigError(f"The URL {url!r} has no valid port.") from exc
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(
                f"The URL of a TMS service is http://HOST:PORT or https://HOST:PORT, got {url!r}."
            )
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ConfigError(f"The URL of a TMS service has no path, got {url!r}.")
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 7070)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{host}:{self.port}"
        self.url = f"{parts.scheme}://{self.authority}"

    @property
    def is_local(self) -> bool:
        """True if the address is of this machine."""
        if self.host == "localhost":
            return True
        try:
            address = ip_address(self.host)
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified


def proxy_variable(address: ServiceAddress, environ: Mapping[str, str]) -> str:
    """The variable that names a proxy for an address, by the convention of curl; empty if none
    does, or NO_PROXY excludes the address."""
    no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    names = [
        name.strip().lower().removeprefix("*").removeprefix(".") for name in no_proxy.split(",")
    ]
    host = address.host.lower()
    excluded = any(name and (host == name or host.endswith(f".{name}")) for name in names)
    if address.is_local or excluded or no_proxy.strip() == "*":
        return ""
    scheme = "https_proxy" if address.tls else "http_proxy"
    variables = (scheme, scheme.upper(), "all_proxy", "ALL_PROXY")
    return next((name for name in variables if environ.get(name)), "")


class ServiceAddresses:
    """The instances of a service, and the one that is used for what no owner is known of.
    Thread-safe. Raises `ConfigError`."""

    def __init__(self, urls: str, clock: Clock | None = None, tls: ClientTls | None = None) -> None:
        self.tls = tls or ClientTls()
        self._given = [ServiceAddress(url.strip()) for url in urls.split(",")]
        self.now = self._given[0]
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self.informed = False  # whether anything was ever said of owners
        self._by_url = {address.url: address for address in self._given}
        self._owners: dict[OwnerKey, ServiceAddress] = {}
        self._shunned: dict[ServiceAddress, float] = {}  # until when
        self.away: dict[ServiceAddress, float] = {}  # since when
        self._tell_proxies()

    def _tell_proxies(self) -> None:
        """Log once that connections go past the proxy that the environment names for them."""
        for address in self._given:
            if variable := proxy_variable(address, os.environ):
                _log.warning("proxy_not_used", service=address.url, variable=variable)
                return

    def context(self, address: ServiceAddress) -> "ssl.SSLContext | None":
        """For a connection to it; None where there is no TLS. Raises `ConfigError`."""
        return self.tls.context() if address.tls else None

    def of(self, places: Sequence[OwnerKey]) -> ServiceAddress:
        """The address for a request that concerns these places; as long as nothing was said it is
        `now`."""
        owners = self.by_owner(places)
        return next(iter(owners)) if len(owners) == 1 else self.now

    def by_owner(self, places: Sequence[OwnerKey]) -> dict[ServiceAddress, list[int]]:
        """The addresses for the parts of a request that can be divided: the numbers of the places
        that each instance keeps. Empty while no owner is known."""
        owners: dict[ServiceAddress, list[int]] = {}
        for number, place in enumerate(places if self._owners else ()):
            owners.setdefault(self._owners.get(place, self.now), []).append(number)
        return owners

    def take_in(self, places: Sequence[OwnerKey], headers: Mapping[bytes, bytes]) -> None:
        """Learn what the header `OWNER` of an answer says of who keeps these places: `URL`, or `URL
        PARTITION…`, separated by commas."""
        for entry in headers.get(OWNER, b"").decode("latin-1").split(","):
            url, *numbers = entry.split() or [""]
            partitions = {int(number) for number in numbers if number.isdecimal()}
            if "://" not in url:
                continue
            with suppress(ConfigError):
                owner = ServiceAddress(url, given=False)
                if owner.is_local and not self._given[0].is_local:
                    continue
                self._learn(
                    [place for place in places if not numbers or place[1] in partitions],
                    owner,
                )

    def _learn(self, places: Iterable[OwnerKey], owner: ServiceAddress) -> None:
        with self._lock:
            owner = self._by_url.setdefault(owner.url, owner)
            if self._shunned.get(owner, 0) > self._clock.monotonic_s():
                return
            owners = self._owners if len(self._owners) < PLACES_MAX else {}
            self._owners = owners | dict.fromkeys(places, owner)
            self.informed = True

    def lost(self, address: ServiceAddress, error: BaseException, given_up: bool = False) -> None:
        """A connection to it could not be made, or has ended with a request under way; which is no
        news where that was `given_up`, or too slow."""
        if given_up or not isinstance(error, Unavailable):
            return
        with self._lock:
            news = address not in self.away
            self.away.setdefault(address, self._clock.monotonic_s())
        if news:
            _log.warning("connection_lost", service=address.url, error=error.message)

    def reached(self, address: ServiceAddress) -> None:
        """It has answered; for who sees that some are `away`."""
        with self._lock:
            since_s = self.away.pop(address, None)
        if since_s is not None:
            away_s = self._clock.monotonic_s() - since_s
            _log.warning("connection_restored", service=address.url, away_s=round(away_s, 3))

    def avoid(self, address: ServiceAddress) -> None:
        """It was not reached, or has refused: use the next one, if it is the one that is used."""
        with self._lock:
            if address in self._owners.values():
                self._shunned[address] = self._clock.monotonic_s() + SHUNNED_S
                self._owners = {
                    place: owner for place, owner in self._owners.items() if owner is not address
                }
            if address is self.now:
                number = self._given.index(address) + 1
                self.now = self._given[number % len(self._given)]
