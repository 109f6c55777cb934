"""Kafka's protocol on the engine, for Kafka's clients; nothing else of the service knows of it.

frames (front) ─▶ messages (codec) ─▶ requests/NAME ─▶ engine
                                         └─▶ records: Kafka's batches ⇄ blocks
"""
