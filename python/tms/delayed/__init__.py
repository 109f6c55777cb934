"""Delayed messages: they wait in a map of their topic, sorted by when they are due, and go into the
log then, each exactly once.

    publish ─▶ map of the topic ─▶ due ─▶ one transaction: messages + position ─▶ rows deleted

entries        the rows of the map
stored_queue   the map of one topic, and who may write it
repetitions    requests that are remembered, so that a repeated one stores nothing
changes        publishing and cancelling: what is decided from what is stored
topic_queue    the delayed messages of one topic
packing        entries that are due become blocks
scheduler      moves what is due into the log
erasing        the waiting messages of a key are erased
delayed        the delayed messages of an engine
"""
