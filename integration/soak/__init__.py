"""The soak: TMS as its users run it, under load and faults, judged by a checker that shares no code
with it.

    make soak SECONDS=3600 SEED=7

A run is rounds, one after the other; the plan of a round is drawn from the seed and its number.

    plan ──▶ embedded load, killed ──▶ service + load processes + faults ──▶ quiet ──▶ every reader
                     │                            │                                       │
                     └────────── ledgers ─────────┘                                   readings
                                    └──────────────────▶ checker ◀────────────────────────┘

    plan        the plan of one round: settings, topics, load, faults
    content     the content of messages, and the digests that identify them
    ledger      operations and their outcomes: files of lines, one per process
    load/       processes that publish, commit, consume, lease, delay, erase; they write ledgers
    faults      faults of these processes and of the service meanwhile
    readers/    everything that reads; each reader writes its reading
    checker/    finds contradictions between readings and ledgers; imports nothing of TMS
    rounds      one round from its plan to its findings
"""
