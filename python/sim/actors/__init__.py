"""Those who use the engine in a simulation.

actor        what they have in common, and where they work
producers    publish plainly
committers   commit in one request
interactive  transactions of several steps, and those of managers elsewhere
readers      read, over and over
replays      read to the end, by every way there is
truncators   make the beginnings of topics unreadable
deciders     publish only what nobody else has come before
renewers     publish only what nothing can be read of, where messages expire
keepers      new values and tombstones of a few keys, in topics that are compacted
erasers      take messages out for good
members      share a topic in a group
workers      share a queue
later        publish what is due later, cancel it, and move it
"""
