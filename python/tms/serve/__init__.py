"""`tms serve`: settings, listeners, store, front ends and workers, put together.

main             one process, or a supervisor of workers
running          the service of one process, from an opened store to the end
workers          several processes on one data directory
opening          the store, as its owner or as an instance of a cluster
listeners        the bound sockets
config           the settings, by section
config_sources   file, environment and flags
"""
