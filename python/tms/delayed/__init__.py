"""Delayed messages: they wait in a map of their topic, sorted by due time, and are then moved into
the log, each exactly once.

    publish ─▶ map of the topic ─▶ due ─▶ one transaction: messages + position ─▶ rows deleted

entries        the rows of the map
stored_queue   the map of one topic, and its owner
repetitions    recent requests, so that a repeated one stores nothing
changes        decisions about publishes and cancellations
topic_queue    the delayed messages of one topic
packing        due entries become blocks
scheduler      moves due messages into the log
erasing        erases the waiting messages of a key
delayed        the delayed messages of an engine
"""
