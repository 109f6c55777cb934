"""Proof by trying: what a run did and saw (`history`), what must hold of it (`checker`), and a
world in one thread whose every step, fault and crash comes from a seed (`simulation`).

    python -m sim SEED      replays one run exactly and says what was found
"""
