"""A process that dies before any of its calls to HBase: takeover, publishing, rolling, commits.

The next process takes over from the dead one. No acknowledged message is lost or duplicated, and
the order is that of the acknowledgements.
"""

from collections.abc import Callable
from functools import partial
from zlib import crc32

import pytest

from integration.cluster import Endpoint
from sim.faulty import FaultyStore
from tests.log_kit import block
from tests.steps import Kind, first_and_last_of_each, kind
from tms.client.client import Bus
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.errors import TMSError
from tms.log.partition import LogLimits
from tms.model.message import NewBlock
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock
from tms.runtime.clock import SystemClock
from tms.store.hbase.store import HBaseStore

NAME, OTHER = TopicName("default", "steps"), TopicName("default", "other")
STEPS_MAX = 400


Work = Callable[[Engine, str], None]
Check = Callable[[Engine, list[str]], None]
Dies = Callable[[list[Kind]], bool]  # before the last of these calls


class Died(BaseException):
    """The process ended here."""


def never(calls: list[Kind]) -> bool:
    """The process lives."""
    return False


def at(nth: int) -> Dies:
    """The process dies before its nth call."""
    return lambda calls: len(calls) == nth


def at_kind(of: Kind, nth: int) -> Dies:
    """The process dies before its nth call of a kind."""
    return lambda calls: calls[-1] == of and calls.count(of) == nth


class Mortal:
    """An engine whose process dies before one of its calls to the store."""

    def __init__(self, url: str, dies: Dies, **log: int) -> None:
        self.kinds: list[Kind] = []  # of the calls so far
        self._dies = dies
        self._inner = HBaseStore(url)
        self._store = FaultyStore(self._inner, self._before)
        self._log = LogLimits(**log)
        self.engine: Engine | None = None

    def run(self, work: Callable[[Engine], None]) -> bool:
        """Open the engine and do the work; True if the process lived to the end of it."""
        try:
            self.engine = Engine(self._store, SystemClock(), EngineConfig(threads=1, log=self._log))
            work(self.engine)
            return not self._store.crashed
        except (Died, TMSError):
            assert self._store.crashed, "an error although nothing had happened"
            return False
        finally:
            self._store.crashed = True
            if self.engine is not None:
                self.engine._threads.shutdown()
            self._inner.close()

    def _before(self, operation: str, name: str) -> None:
        self.kinds.append(kind(operation, name))
        if self._dies(self.kinds):
            self._store.crashed = True
            raise Died


class Steps:
    """Deaths at one step after another, each in a store of its own that a process has used
    before."""

    def __init__(self, url: str, hbase: Endpoint) -> None:
        self._url = url
        self._hbase = hbase

    def die_at_each(self, work: Work, check: Check) -> int:
        """Die at the first call, then at the second …; returns the number of deaths."""
        for nth in range(1, STEPS_MAX):
            if self.lives(at(nth), work, check):
                return nth - 1
        raise AssertionError("it never came to an end")

    def die_at_each_kind(self, work: Work, check: Check) -> set[Kind]:
        """Die at the first call of each kind, and at the last, as a process that lived made them;
        returns the kinds of the calls before which a process died."""
        calls: list[Kind] = []
        assert self.lives(never, work, check, calls)
        visited: set[Kind] = set()
        for step in first_and_last_of_each(calls):
            made: list[Kind] = []
            dies = at_kind(calls[step], calls[: step + 1].count(calls[step]))
            if not self.lives(dies, work, check, made):
                visited.add(made[-1])
        assert visited == set(calls)
        return visited

    def lives(self, dies: Dies, work: Work, check: Check, calls: list[Kind] | None = None) -> bool:
        """One process works, the second one may die, the third works, and the result is checked.
        True if the second lived; `calls` gets the calls that it made."""
        self._clear()
        acknowledged: list[str] = []

        def works(name: str) -> Callable[[Engine], None]:
            def go(engine: Engine) -> None:
                work(engine, name)
                acknowledged.append(name)

            return go

        assert self._mortal().run(works("first"))
        second = self._mortal(dies)
        lived = second.run(works("second"))
        assert self._mortal().run(works("third"))
        assert self._mortal().run(partial(check, acknowledged=acknowledged))
        if calls is not None:
            calls += second.kinds
        return lived

    def _mortal(self, dies: Dies = never) -> Mortal:
        return Mortal(self._url, dies, segment_bytes=5_000)

    def _clear(self) -> None:
        with self._hbase.connect() as gateway:
            for table in ("metadata", "payloads", "messages"):
                gateway.clear(f"{self._url.rpartition('/')[2]}:{table}")


@pytest.fixture
def steps(tms_url: str, hbase: Endpoint) -> Steps:
    return Steps(tms_url, hbase)


def values(engine: Engine, name: TopicName) -> list[str]:
    """The values that a consumer finds."""
    found = Bus(engine).consumer(name.topic, stop_at_end=True)
    return [(one.value or b"").rstrip(b"\0").decode() for one in found]


class Publishing:
    """Three messages, of which the third comes after a roll."""

    @staticmethod
    def work(engine: Engine, name: str) -> None:
        engine.create_topic(NAME, TopicSettings())
        producer = crc32(name.encode())
        for number in range(3):
            value = f"{name} {number}".encode() + bytes(3_000)
            made = block(value, producer=producer, sequence=number)
            engine.append(NAME, [NewBlock(0, made)])
            engine.maintenance.clean()

    @staticmethod
    def check(engine: Engine, acknowledged: list[str]) -> None:
        found = values(engine, NAME)
        assert len(found) == len(set(found)), "a message is there twice"
        assert found == sorted(found), "messages are not in the order of publishing"
        for name in ("first", "second", "third"):
            numbers = [one for one in found if one.startswith(name)]
            assert numbers == [f"{name} {number}" for number in range(len(numbers))]
            assert len(numbers) == 3 or name not in acknowledged, "an acknowledged one is lost"


class Committing:
    """A transaction over two topics."""

    @staticmethod
    def work(engine: Engine, name: str) -> None:
        for topic in (NAME, OTHER):
            engine.create_topic(topic, TopicSettings())
        blocks = tuple(
            TopicBlock(topic, NewBlock(0, block(name.encode()))) for topic in (NAME, OTHER)
        )
        engine.transactions.commit(Commit(token=name, blocks=blocks))

    @staticmethod
    def check(engine: Engine, acknowledged: list[str]) -> None:
        first, second = values(engine, NAME), values(engine, OTHER)
        assert first == second, "a transaction is there in part"
        assert first == sorted(set(first))
        assert set(acknowledged) <= set(first), "a committed one is lost"


STORIES = [Publishing, Committing]


@pytest.mark.parametrize("story", STORIES)
def test_what_was_acknowledged_survives_a_death_at_each_kind_of_step(
    story: type[Publishing | Committing], steps: Steps
) -> None:
    kinds = steps.die_at_each_kind(story.work, story.check)
    assert {operation for operation, _ in kinds} >= {"get", "scan", "write", "compare_and_set"}


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES)
def test_what_was_acknowledged_survives_a_death_at_every_step(
    story: type[Publishing | Committing], steps: Steps
) -> None:
    assert steps.die_at_each(story.work, story.check) > 20
