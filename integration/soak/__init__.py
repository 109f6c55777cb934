"""The soak: TMS as its users meet it, under load and faults, judged by a checker that shares no
code with it.

    make soak SECONDS=3600 SEED=7

A run is rounds, one after the other; all that a round does is drawn from the seed and its number.

    plan ──▶ embedded load, killed ──▶ service + load processes + faults ──▶ quiet ──▶ every reader
                     │                            │                                       │
                     └────────── ledgers ─────────┘                                   readings
                                    └──────────────────▶ checker ◀────────────────────────┘

    plan        what one round does: settings, topics, load, faults
    content     what messages are made of, and the digests by which they are recognised
    ledger      what was tried, and what became of it: files of lines, one per process
    load/       processes that publish, commit, consume, lease, delay, erase; they write ledgers
    faults      what happens to them and to the service meanwhile
    readers/    everything that reads; each writes what it saw
    checker/    says what of the readings contradicts the ledgers; imports nothing of TMS
    rounds      one round from its plan to its findings
"""
