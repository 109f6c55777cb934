"""The level of the log while the service runs: for a while, or until it starts again.

Invariants

* Only existing loggers can be set, `tms` and those below it, so their number is bounded.
* A level that was set for a while goes back to the logger's default when that is over, whatever was
  set before. The level that was set last counts.
* `close` leaves all loggers as they were at the start.
"""

import difflib
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tms.api.instances import PeersApi
from tms.errors import Invalid, NotFound
from tms.model.log_level import DEFAULT_LEVEL, FOR_S_MAX, LEVELS, LOGGER, LogLevel
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

_log = EventLog("tms.server")


class _Changed(NamedTuple):
    """A logger whose level was set here."""

    default: int
    until_ms: int | None = None
    timer: threading.Timer | None = None


class LevelCluster(Protocol):
    """The instances of a service, and which one this is."""

    @property
    def id(self) -> str: ...

    def others(self) -> Sequence[PeersApi]: ...


class LogLevels:
    """The levels of loggers; implements `LogApi`. Thread-safe. Without a cluster the service is
    alone."""

    def __init__(self, clock: Clock, cluster: LevelCluster | None = None) -> None:
        self._clock = clock
        self._cluster = cluster
        self._lock = threading.Lock()
        self._changed: dict[str, _Changed] = {}

    def levels(self) -> list[LogLevel]:
        """`tms`, and the loggers below it that have levels of their own, by name."""
        with self._lock:
            names = [one for one in _loggers() if one == LOGGER or logging.getLogger(one).level]
            return [self._level(name) for name in names]

    def set_level(
        self,
        level: str,
        logger: str = LOGGER,
        for_s: float | None = None,
        everywhere: bool = False,
    ) -> list[LogLevel]:
        """Set the level of a logger, here and, if `everywhere`, at the other instances. Raises
        `Invalid`, `NotFound`, and `Unavailable` for an instance that does not answer: the level is
        set at those before it."""
        here = self.set_here(level, logger, for_s)
        others = self._cluster.others() if everywhere and self._cluster is not None else ()
        return [here, *(one.set_log_level(level, logger, for_s) for one in others)]

    def set_here(self, level: str, logger: str, for_s: float | None) -> LogLevel:
        """Set the level of a logger at this instance only."""
        _check(level, logger, for_s)
        with self._lock:
            _log.warning("log_level_changed", logger=logger, level=level, for_s=for_s)
            self._put_back(logger)
            if level != DEFAULT_LEVEL:
                self._set(logger, level, for_s)
            return self._level(logger)

    def close(self) -> None:
        """All loggers are as they were."""
        with self._lock:
            for name in [*self._changed]:
                self._put_back(name)

    def _set(self, name: str, level: str, for_s: float | None) -> None:
        found = logging.getLogger(name)
        changed = _Changed(found.level)
        if for_s is not None:
            timer = threading.Timer(for_s, self._over, (name,))
            timer.daemon = True
            changed = _Changed(found.level, self._clock.now_ms() + round(for_s * 1_000), timer)
            timer.start()
        self._changed[name] = changed
        found.setLevel(logging.getLevelNamesMapping()[level.upper()])

    def _over(self, name: str) -> None:
        with self._lock:
            changed = self._changed.get(name)
            if changed is None or changed.timer is not threading.current_thread():
                return  # it was set again meanwhile
            self._put_back(name)
        _log.warning("log_level_changed", logger=name, level=DEFAULT_LEVEL, for_s=None)

    def _put_back(self, name: str) -> None:
        changed = self._changed.pop(name, None)
        if changed is not None:
            logging.getLogger(name).setLevel(changed.default)
            if changed.timer is not None:
                changed.timer.cancel()

    def _level(self, name: str) -> LogLevel:
        found, changed = logging.getLogger(name), self._changed.get(name)
        default = found.level if changed is None else changed.default
        return LogLevel(
            name,
            _text(found.getEffectiveLevel()),
            _text(default) if default else "",
            None if changed is None else changed.until_ms,
            "" if self._cluster is None else self._cluster.id,
        )


def _loggers() -> list[str]:
    """Those of TMS."""
    names = [*logging.root.manager.loggerDict]
    return sorted(name for name in names if name == LOGGER or name.startswith(f"{LOGGER}."))


def _text(level: int) -> str:
    return logging.getLevelName(level).lower()


def _check(level: str, logger: str, for_s: float | None) -> None:
    if level not in (*LEVELS, DEFAULT_LEVEL):
        raise Invalid(
            f"level is one of {', '.join(LEVELS)} and {DEFAULT_LEVEL}, got {level!r:.40}.",
            field="level",
        )
    if for_s is not None and not 0 < for_s <= FOR_S_MAX:
        raise Invalid(
            f"for_s is more than 0 and at most {FOR_S_MAX:.0f} seconds, got {for_s!r:.40}.",
            field="for_s",
        )
    if for_s is not None and level == DEFAULT_LEVEL:
        raise Invalid(f"The level {DEFAULT_LEVEL} has no end: leave out for_s.", field="for_s")
    known = _loggers()
    if logger not in known:
        near = difflib.get_close_matches(logger, known) or [LOGGER]
        raise NotFound(
            f"There is no logger {logger!r:.80}; those like it: {', '.join(near)}. "
            "docs/logging.md has the events of each."
        )
