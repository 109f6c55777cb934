"""Services of the process that every room may use: time, events, options, TLS, retries.

background  the thread of a component that works in the background
clock       the clock that is passed in: the machine's, or a test's
disk        files that survive power loss
decoding    msgspec's decoders, each made once and before threads share it
events      structured log lines
extras      packages that only some installations have
forks       a guard against objects used in a forked child
histogram   counts of measured values by upper bounds
options     checks of keyword options, with the nearest valid name in the error
retrying    repeating a call until it succeeds or its time is over
throttle    the share of time that background work may use
tls         certificates and keys of clients
version     the version of TMS
"""
