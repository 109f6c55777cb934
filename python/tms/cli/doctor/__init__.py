"""`tms doctor`: what is wrong with this machine, this data directory, this configuration, this
service.

Each check looks at one thing, changes nothing, and says how to mend what it found.
"""
