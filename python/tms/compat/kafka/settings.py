"""The section `kafka` of the settings."""

import re
from typing import Self

from pydantic import Field, model_validator

from tms.errors import ConfigError
from tms.model.topic import DEFAULT_NAMESPACE, NAMESPACE, PARTITIONS_MAX, SYSTEM_NAMESPACE
from tms.runtime.extras import needed
from tms.server.framed import FramedLimits
from tms.server.front import Front, FrontSection, FrontTerms
from tms.server.service import Service
from tms.server.serving import endpoint_of

KAFKA = "kafka"
_FRAMES = FramedLimits()
_ADVERTISED = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})")


class KafkaSection(FrontSection):
    """Kafka's protocol. Without a port the service does not speak it."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    advertised: str = ""
    namespace: str = Field(default=DEFAULT_NAMESPACE, pattern=f"^{NAMESPACE}$")
    existing_topics_only: bool = False
    partitions: int = Field(default=1, ge=1, le=PARTITIONS_MAX)
    clients_max: int = Field(default=_FRAMES.clients_max, ge=1)
    frame_timeout_s: float = Field(default=_FRAMES.frame_timeout_s, ge=1, le=600)
    rebalance_delay_ms: int = Field(default=300, ge=0, le=60_000)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.advertised and not _ADVERTISED.fullmatch(self.advertised):
            raise ValueError(
                f"advertised is HOST:PORT as clients reach it, got {self.advertised!r:.80}"
            )
        if self.namespace == SYSTEM_NAMESPACE:
            raise ValueError("namespace: `system` belongs to TMS; choose another one")
        return self

    @property
    def port_of_its_own(self) -> int | None:
        """The port of Kafka's protocol; None if it is not spoken."""
        return self.port

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """The broker that Kafka's clients see. Raises `ConfigError` where it cannot be one."""
        if terms.listener is None:
            return Front(KAFKA)
        if service.engine.cluster is not None:
            raise ConfigError(
                "Kafka's protocol is spoken by a single process, and this service has several "
                "instances or workers. Leave --kafka-port out, or start it alone."
            )
        with needed("Kafka's protocol", "kafka"):
            from tms.compat.kafka.broker import Broker, BrokerOptions
            from tms.compat.kafka.front import KafkaServer
        at = self.advertised or endpoint_of(terms.listener, "")
        host, _, port = at.rpartition(":")
        options = BrokerOptions(
            host.strip("[]"),
            int(port),
            self.namespace,
            not self.existing_topics_only,
            self.partitions,
            self.rebalance_delay_ms,
        )
        limits = FramedLimits(min(self.clients_max, terms.clients_max), self.frame_timeout_s)
        newest = None if terms.certificates is None else terms.certificates.newest
        server = KafkaServer(Broker(service, options), terms.listener, limits, newest)
        return Front(KAFKA, listener=server)
