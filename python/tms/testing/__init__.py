"""How programs that use TMS are tested: an engine in memory, a clock that is moved, faults.

clock ──▶ engine in memory ◀── faults ◀── bus        `memory` puts them together
                 ▲                                   `service` puts HTTP before it
                 └── service ◀── the program         `plugin` has the fixtures for pytest
"""
