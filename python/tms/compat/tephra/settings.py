"""The section `tephra` of the settings."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Self

from pydantic import Field, model_validator

from tms.compat.tephra.frames import TEPHRA, FrameLimits
from tms.errors import NotFound
from tms.runtime.extras import needed
from tms.server.front import Front, FrontSection, FrontTerms
from tms.server.service import Service

ANSWER = "peers.answer_tephra"  # the operation of other instances
_FRAMES = FrameLimits()
_QUORUM = r"^$|^[\w.-]+:\d{1,5}(,[\w.-]+:\d{1,5})*(/[\w./-]+)?$"


class TephraSection(FrontSection):
    """Apache Tephra's protocol. Without a port the service does not speak it."""

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
        """The networks that may connect if access is controlled."""
        return tuple(ip_network(text.strip()) for text in self.allow.split(",") if text.strip())

    def limits(self, clients_max: int, is_guarded: bool) -> FrameLimits:
        """The bounds of connections, at most `clients_max` of them."""
        allow = self.networks() if is_guarded else None
        clients_max = min(self.clients_max, clients_max)
        return FrameLimits(clients_max, self.frame_timeout_s, allow, workers=self.workers)

    @property
    def port_of_its_own(self) -> int | None:
        """The port of Thrift; None if Tephra's protocol is not spoken."""
        return self.port

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """Tephra's transaction server; without a listener other instances are refused."""
        if terms.listener is None:
            return Front(TEPHRA, works={ANSWER: _not_spoken})
        with needed("Tephra's protocol", "hbase"):  # loads the drivers, which others need not
            from tms.compat.tephra.front import TephraServer
        limits = self.limits(terms.clients_max, terms.is_guarded)
        tephra = TephraServer(service, terms.listener, limits)
        if self.zookeeper:
            tephra.register(self.zookeeper, self.discovery_name, terms.host)
        return Front(TEPHRA, listener=tephra, works={ANSWER: tephra.answer_here})


def _not_spoken(message: bytes) -> bytes:
    raise NotFound("This instance does not speak Tephra's protocol; see --tephra-port.")
