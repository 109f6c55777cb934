"""The state of the process that one test must not leave changed for the next: logging, signals,
environment, working directory and garbage collection."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

LOGGERS = ("", "tms")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
OTHERS_OWN = ("SPARK", "PYSPARK", "JAVA_", "_RJEM_")  # set by pyspark for its JVM, and by polars
PYTESTS_OWN = "PYTEST_CURRENT_TEST"


class ProcessState(NamedTuple):
    """Everything that a test has to leave as it was."""

    logging_disabled: int
    log_levels: dict[str, int]
    log_handlers: dict[str, int]
    signals: dict[str, object]
    environment: dict[str, str]
    directory: str
    collects_garbage: bool


def process_state() -> ProcessState:
    """The state now; of signals only in the main thread, which alone can set them."""
    loggers = {name: logging.getLogger(name) for name in LOGGERS}
    in_main = threading.current_thread() is threading.main_thread()
    return ProcessState(
        logging.root.manager.disable,
        {name: logger.level for name, logger in loggers.items()},
        {name: len(logger.handlers) for name, logger in loggers.items()},
        {one.name: signal.getsignal(one) for one in SIGNALS} if in_main else {},
        {
            name: value
            for name, value in os.environ.items()
            if name != PYTESTS_OWN and not name.startswith(OTHERS_OWN)
        },
        os.getcwd(),
        gc.isenabled(),
    )


def changes(before: ProcessState, after: ProcessState) -> list[str]:
    """One line for each part of the state that differs."""
    found: list[str] = []
    for part, old, new in zip(ProcessState._fields, before, after, strict=True):
        if isinstance(old, dict) and isinstance(new, dict):
            for key in sorted(old.keys() | new.keys()):
                if old.get(key) != new.get(key):
                    found.append(f"{part}, {key or 'root'}: {old.get(key)!r} is {new.get(key)!r}")
        elif old != new:
            found.append(f"{part}: {old!r} is {new!r}")
    return found


@contextmanager
def unchanged() -> Iterator[None]:
    """Fail if the body leaves the state of the process changed, and put logging back, so that the
    next test does not fail for this one."""
    before = process_state()
    yield
    found = changes(before, process_state())
    logging.disable(before.logging_disabled)
    for name, level in before.log_levels.items():
        logging.getLogger(name).setLevel(level)
    assert not found, "The test left the process changed: " + "; ".join(found)
