"""Delayed messages: they wait in a map of their topic, sorted by when they are due, and go into the
log then, each exactly once.

    publish ─▶ map of the topic ─▶ due ─▶ one transaction: messages + position ─▶ rows deleted
"""
