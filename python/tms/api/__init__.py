"""The wire format: paths, statuses, problem documents, bodies.

Server and client share this room; it does no I/O.
"""
