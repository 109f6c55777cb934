"""A process that works with a bus and a SQL database, and dies at any of its steps.

A step is an external effect: a call to the bus, a statement, a commit. The store of the bus and the
database survive the process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event

import tms
from tests.clocks import ManualClock
from tms.engine.engine import Engine as LogEngine
from tms.store.memory import MemoryStore

CALLS = ("begin", "prepare", "commit", "abort", "invalidate", "describe", "move")


class Crash(BaseException):
    """The process is gone: its further actions have no effect."""


class Steps:
    """Counts the external effects of a process, and ends it at one of them. A call is two steps:
    before its effect, and after it but before the answer."""

    def __init__(self, die_at: int = -1) -> None:
        self.die_at = die_at
        self.count = 0

    @property
    def dead(self) -> bool:
        return 0 <= self.die_at < self.count

    def step(self) -> None:
        self.count += 1
        if self.dead:
            raise Crash


class Watched:
    """The transactions of an engine; each call is two steps."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **more: Any) -> Any:
            self._steps.step()
            answer = found(*args, **more)
            self._steps.step()
            return answer

        return call


class _Log:
    """An engine with other transactions."""

    def __init__(self, inner: LogEngine, transactions: Watched) -> None:
        self._inner, self.transactions = inner, transactions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Database:
    """A SQLite database; its statements and commits are steps."""

    def __init__(self, url: str, steps: Steps | None) -> None:
        self._engine = create_engine(url)
        if steps is not None:
            counted = steps
            event.listen(self._engine, "before_cursor_execute", lambda *_: counted.step())
            event.listen(self._engine, "commit", lambda _: counted.step())

            real = self._engine.dialect.do_commit

            def commit(connection: Any) -> None:
                real(connection)
                counted.step()

            self._engine.dialect.do_commit = commit  # type: ignore[method-assign]

    def __enter__(self) -> Engine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()


class World:
    """A store and a database that survive the processes that use them."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path / 'db.sqlite'}"
        self.store, self.clock = MemoryStore(), ManualClock()
        self.start()

    def start(self) -> None:
        """Start the service anew."""
        self.engine = LogEngine(self.store, self.clock)

    def end(self) -> None:
        """Kill the process for good."""
        self.engine._threads.shutdown()

    def restart(self) -> None:
        """Kill the process and start another one; sessions begin anew."""
        self.end()
        self.clock.pass_ms(1)
        self.start()
        self.clock.pass_ms(10_000)

    def time_out(self) -> None:
        """Let all open transactions time out."""
        self.clock.pass_ms(31_000)
        self.engine.transactions.manager.expire()

    def bus(self) -> tms.Bus:
        return tms.Bus(self.engine)

    def database(self, steps: Steps | None = None) -> "Database":
        return Database(self.url, steps)

    def run(self, work: Callable[[tms.Bus, Engine], object], die_at: int = -1) -> Steps:
        """Run a process that does this work, until it dies at one of its steps."""
        steps = Steps(die_at)
        transport: Any = _Log(self.engine, Watched(self.engine.transactions, steps))
        try:
            with self.database(steps) as engine:
                work(tms.Bus(transport), engine)
        except Crash:
            self.clock.pass_ms(10_000)  # its session in the group ends
        return steps
