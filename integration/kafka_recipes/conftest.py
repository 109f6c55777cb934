"""The service of the lane for Kafka's clients, for the recipes."""

from integration.kafka_clients.conftest import service, service_log, topic

__all__ = ["service", "service_log", "topic"]
