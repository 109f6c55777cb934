"""Kafka's protocol on the same engine."""
