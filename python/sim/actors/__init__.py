"""The users of the engine in a simulation.

actor        their shared parts, and their topics
producers    publish outside of transactions
committers   commit in one request
interactive  transactions of several steps, and those of managers elsewhere
readers      read, over and over
replays      read to the end, in every way there is
truncators   make the beginnings of topics unreadable
deciders     publish only if no other message has come before
renewers     publish a key only if none of its messages can be read, where messages expire
keepers      new values and tombstones of a few keys, in topics that are compacted
erasers      erase messages for good
members      share a topic in a group
classic      share topics in a group of Kafka's classic protocol
workers      share a queue
later        publish delayed messages, cancel and move them
"""
