"""The section `kafka` of the settings."""

import re
import socket
from functools import partial
from typing import Self

from pydantic import Field, model_validator

from tms.compat.kafka.brokers import KAFKA
from tms.compat.kafka.coordinated import ANSWER, answer_question
from tms.model.topic import DEFAULT_NAMESPACE, NAMESPACE, PARTITIONS_MAX, SYSTEM_NAMESPACE
from tms.runtime.extras import needed
from tms.server.framed import FramedLimits
from tms.server.front import Front, FrontSection, FrontTerms, require_last_port
from tms.server.service import Service

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

    @property
    def has_a_port_for_each_worker(self) -> bool:
        """True: a client asks the leader of each partition, which is one worker."""
        return True

    def require_ports(self, name: str, workers: int) -> None:
        """Raise `ValueError` unless each worker has a port, and one that clients are told."""
        super().require_ports(name, workers)
        if self.advertised:
            port = int(self.advertised.rpartition(":")[2])
            require_last_port(f"{name}.advertised", port, workers)

    def endpoint(self, listener: socket.socket, host: str, nth: int) -> str:
        """HOST:PORT at which clients reach a broker; that of each worker has a port of its own."""
        if not self.advertised:
            return super().endpoint(listener, host, nth)
        host, _, port = self.advertised.rpartition(":")
        return f"{host}:{int(port) + nth}"

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """The broker that Kafka's clients see; without a listener one that only other brokers
        ask."""
        works = {ANSWER: partial(answer_question, service.engine)}
        if terms.listener is None:
            return Front(KAFKA, works=works)
        with needed("Kafka's protocol", "kafka"):
            from tms.compat.kafka.broker import Broker, BrokerOptions
            from tms.compat.kafka.front import KafkaServer
        options = BrokerOptions(
            terms.endpoint,
            self.namespace,
            not self.existing_topics_only,
            self.partitions,
            self.rebalance_delay_ms,
        )
        limits = FramedLimits(min(self.clients_max, terms.clients_max), self.frame_timeout_s)
        newest = None if terms.certificates is None else terms.certificates.newest
        server = KafkaServer(Broker(service, options), terms.listener, limits, newest)
        return Front(KAFKA, listener=server, works=works)
