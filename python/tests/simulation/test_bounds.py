"""Every bound of the product is drawn in the simulation and in the state machines, or a sentence
gives the reason why not; and a seed always draws the same bounds."""

from fnmatch import fnmatchcase

import pytest

from sim.bounds.drawing import Bounds
from sim.bounds.source import bounds, looked_up, unnamed, users
from sim.bounds.table import DRAWN, EXCUSED

PATTERNS = [pattern for patterns in EXCUSED.values() for pattern in patterns]
UNNAMED = {
    "cli",
    "doctor",
    "log.partition",
    "serve.opening",
    "store.leveldb.directory",
    "store.leveldb.store",
}


def test_every_bound_is_drawn_or_excused() -> None:
    forgotten = [
        path
        for path in bounds()
        if path not in DRAWN and not any(fnmatchcase(path, pattern) for pattern in PATTERNS)
    ]
    assert not forgotten, (
        f"Say in python/sim/bounds/table.py how small {forgotten} are to be drawn, or why not."
    )


def test_what_the_table_names_is_in_the_source() -> None:
    assert not DRAWN.keys() - bounds().keys()
    undrawn = bounds().keys() - DRAWN.keys()
    unused = [one for one in PATTERNS if not any(fnmatchcase(path, one) for path in undrawn)]
    assert not unused, "each of them excuses a bound that is not drawn"


def test_a_bound_is_drawn_up_to_its_default() -> None:
    assert not {path for path, least in DRAWN.items() if least > bounds()[path].default}


def test_what_is_drawn_is_looked_up_when_it_is_needed() -> None:
    assert not [path for path in DRAWN if path in users() and not looked_up(path)]


def test_sizes_within_functions_have_names() -> None:
    """With names they can be drawn."""
    strangers = {one for one in unnamed() if not one.startswith(tuple(UNNAMED))}
    assert not strangers


@pytest.mark.parametrize("seed", [1, "machine 1"])
def test_a_seed_draws_the_same_bounds_each_time(seed: int | str) -> None:
    assert Bounds.of(seed).drawn == Bounds.of(seed).drawn


def test_each_bound_is_drawn_small_by_some_seeds_and_left_alone_by_others() -> None:
    drawn = [Bounds.of(seed).drawn for seed in range(100)]
    for path, least in DRAWN.items():
        values = [one[path] for one in drawn if path in one]
        assert 20 < len(values) < 100, path
        middle = (least * bounds()[path].default) ** 0.5
        assert any(value <= middle for value in values), path


def test_bounds_are_set_in_every_module_that_uses_them_and_then_put_back() -> None:
    import tms.log.reader as reader
    from tms.log import partition

    defaults = reader._LOOK_BYTES, partition.LOOK_BYTES
    drawn = Bounds({"log.reader._LOOK_BYTES": 7, "log.partition.LOOK_BYTES": 9})
    with drawn.set():
        assert (reader._LOOK_BYTES, partition.LOOK_BYTES) == (7, 9)
    assert defaults == (reader._LOOK_BYTES, partition.LOOK_BYTES)


def test_an_engine_is_configured_with_what_was_drawn() -> None:
    config = Bounds({"log.partition.LogLimits.producers": 60}).config(threads=2)
    assert (config.log.producers, config.threads) == (60, 2)
    assert config.log.segment_bytes == bounds()["log.partition.LogLimits.segment_bytes"].default
