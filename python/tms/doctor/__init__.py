"""`tms doctor`: what is wrong with this machine, this data directory, this configuration, this
service.

finding        what a check says
advice         what to do about it
machine        the machine: processor, memory, disk, clock, limits
directory      a data directory
configuration  the configuration of a service
probe          what a port answers
service        a service that runs
spark          what Spark needs here

Each check looks at one thing, changes nothing, and says how to mend what it found.
"""
