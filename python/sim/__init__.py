"""Proof by trying: what a run did and saw (`history`), what must hold of it (`checker`), and a
world in one thread whose every step, fault, crash and bound comes from a seed (`simulation`,
`bounds`).

    python -m sim SEED      replays one run exactly and says what was found
"""
