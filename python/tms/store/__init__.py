"""Ordered maps: the only place where bytes become durable. Nothing here knows topics, blocks or
messages."""
