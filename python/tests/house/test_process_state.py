"""A test that leaves the process changed for the next one fails."""

import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process_state import unchanged


def _handle_a_signal() -> None:
    signal.signal(signal.SIGHUP, lambda *_: None)


def _set_a_variable() -> None:
    os.environ["TMS_LEFT_BEHIND"] = "1"


def _go_elsewhere() -> None:
    os.chdir(Path.cwd().parent)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (logging.disable, "logging_disabled"),
        (lambda: logging.getLogger("tms").setLevel(1), "log_levels, tms"),
        (lambda: logging.getLogger().addHandler(logging.NullHandler()), "log_handlers, root"),
        (_handle_a_signal, "signals, SIGHUP"),
        (_set_a_variable, "environment, TMS_LEFT_BEHIND"),
        (_go_elsewhere, "directory"),
        (gc.disable, "collects_garbage"),
    ],
)
def test_a_change_that_a_test_leaves_behind_is_named(
    change: Callable[[], object], name: str
) -> None:
    handlers, directory = [*logging.root.handlers], os.getcwd()
    hangup = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(AssertionError, match=name), unchanged():
            change()
    finally:
        os.environ.pop("TMS_LEFT_BEHIND", None)
        os.chdir(directory)
        signal.signal(signal.SIGHUP, hangup)
        logging.root.handlers[:] = handlers
        gc.enable()


def test_logging_is_put_back_for_the_next_test() -> None:
    with pytest.raises(AssertionError), unchanged():
        logging.disable()
    assert logging.root.manager.disable == logging.NOTSET
