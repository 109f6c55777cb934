"""Tools for testing programs that use TMS: an engine in memory, a clock that tests move, faults.

clock ──▶ engine in memory ◀── faults ◀── bus        `memory` puts them together
                 ▲                                   `service` puts HTTP before it
                 └── service ◀── the program         `plugin` has the fixtures for pytest
"""
