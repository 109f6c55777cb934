"""`tms doctor` and `tms fsck`: findings about a machine, a directory, a configuration, a service.

finding        the result of one check
machine        the machine: limits, clock, temporary files, environment
directory      the place of a data directory: rights, file system, space, syncs
configuration  the configuration of a service
probe          the answer of a port
service        a running service
spark          the requirements of Spark on this machine
verify         fsck: compares every map with its records
repair         fsck: mends what can be mended and keeps damaged maps aside

A check of `doctor` looks at one thing, changes nothing, and says how to mend what it found. `fsck`
works below any engine, on a store that no process has open.
"""
