"""The bounds of a run of a state machine: hypothesis draws a seed, shows it, and shrinks towards
the run in which everything is at its default."""

from hypothesis import strategies as st

from sim.bounds.drawing import Bounds

SEEDS = st.integers(0, 9_999)
AT_DEFAULT = Bounds()


def bounds_of(seed: int) -> Bounds:
    """The bounds that a seed draws; 0 draws none."""
    return Bounds.of(f"machine {seed}") if seed else AT_DEFAULT
