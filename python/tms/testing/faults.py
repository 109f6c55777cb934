"""Faults that a test switches on: calls of the bus in memory fail as planned.

    bus ──▶ FaultyEngine ──▶ Faults: away? next one fails? ──▶ engine ──▶ its answer, or it is lost

Invariants

* Tests choose the failing calls by counting, never by time or chance.
* An error reaches the program at once: the client's retries are skipped, not waited for.
* A block that has failed fails once more, as a producer repeats it before it tells its program, and
  in the thread of a producer always: a `flush` or `close` of the program stores it.
* Closing the log never fails.
* Nothing of a call that fails is done; everything of a call whose answer is lost is done.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from tms.block import read_header
from tms.client.producer import is_driver
from tms.errors import Invalid, TimedOut, TMSError, Unavailable, again
from tms.model.message import NewBlock
from tms.testing.clock import ClientClock

SKIPPED_S = 300.0  # longer than clients wait
DRIVER_SKIPS_S = 60.0  # many times, before what is in doubt is given up
FAILED_MAX = 64  # blocks that failed and may be repeated
PORTS = ("access", "delayed", "groups", "queues", "transactions")
# What a program calls, and the calls of an engine that carry it out.
OPERATIONS: dict[str, frozenset[str]] = {
    "publish": frozenset({"append", "submit"}),
    "publish_later": frozenset({"delayed.publish", "delayed.submit"}),
    "fetch": frozenset({"fetch", "fetch_cached"}),
    "commit": frozenset({"transactions.commit"}),
    "receive": frozenset({"queues.receive"}),
    "ack": frozenset({"queues.ack"}),
}


class _Planned(NamedTuple):
    """A fault that waits for its call: an error instead of it, or after it."""

    error: TMSError
    done: bool


@dataclass(slots=True)
class _Failed:
    """A block that a fault has met, and how often its program meets it again."""

    block: tuple[int, int, int]
    planned: _Planned
    times: int = 1


class Faults:
    """The faults of one bus in memory. Thread-safe."""

    def __init__(self, clock: ClientClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._planned: dict[str, deque[_Planned]] = {name: deque() for name in OPERATIONS}
        self._failed: deque[_Failed] = deque(maxlen=FAILED_MAX)
        self._away = False

    def fail_next(
        self, operation: str = "publish", error: TMSError | None = None, times: int = 1
    ) -> None:
        """Let the next `times` calls of an operation fail, with nothing done: `publish`,
        `publish_later`, `fetch`, `commit`, `receive` or `ack`. The error is `Unavailable` unless
        given. Raises `Invalid`."""
        reason = error or Unavailable(f"The test lets this {operation} fail (tms_faults).")
        self._plan(operation, [_Planned(reason, done=False)] * times)

    def lose_answer(self, operation: str = "publish", times: int = 1) -> None:
        """Let the next `times` calls of an operation be done and their answers be lost: `TimedOut`,
        of which the program cannot know whether anything was done. Raises `Invalid`."""
        lost = TimedOut(
            f"The test loses the answer to this {operation} (tms_faults); whether it is done is "
            "unknown.",
            outcome="unknown",
        )
        self._plan(operation, [_Planned(lost, done=True)] * times)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within this block the service is away: every call raises `Unavailable`."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def end(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._away = False
            self._failed.clear()
            for planned in self._planned.values():
                planned.clear()

    def call(self, name: str, do: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Make a call of the engine, or fail as planned."""
        if self._away:
            self._skip()
            raise Unavailable("The test has sent the service away (tms_faults.away).")
        planned = self._next(name, args)
        if planned is None:
            return do(*args, **more)
        if planned.done:
            answer = do(*args, **more)
            if hasattr(answer, "result"):  # an append that is under way
                answer.result(SKIPPED_S)
        self._skip()
        raise again(planned.error)

    def _plan(self, operation: str, faults: list[_Planned]) -> None:
        if operation not in OPERATIONS:
            raise Invalid(
                f"operation is one of {', '.join(OPERATIONS)}, got {operation!r:.80}.",
                field="operation",
            )
        with self._lock:
            self._planned[operation] += faults

    def _next(self, name: str, args: tuple[Any, ...]) -> _Planned | None:
        block = _first_block(args[1]) if name in OPERATIONS["publish"] else None
        with self._lock:
            for one in self._failed:
                if one.block == block and (one.times or is_driver()):
                    one.times -= not is_driver()
                    return one.planned
            for operation, calls in OPERATIONS.items():
                if name in calls and self._planned[operation]:
                    planned = self._planned[operation].popleft()
                    if block is not None:
                        self._failed.append(_Failed(block, planned))
                    return planned
        return None

    def _skip(self) -> None:
        self._clock.skip(DRIVER_SKIPS_S if is_driver() else SKIPPED_S)


def _first_block(blocks: Sequence[NewBlock]) -> tuple[int, int, int]:
    """The identity of the first block of a request, which repetitions keep."""
    header = read_header(blocks[0].block)
    return blocks[0].partition, header.producer_id, header.producer_sequence


class FaultyEngine:
    """An engine as a bus sees it: the same calls, some of which fail. After each call of a port
    `settle` does what is due by then, which no thread of the engine does here."""

    def __init__(self, engine: object, faults: Faults, settle: Callable[[], None]) -> None:
        self.close: Callable[[], None] = engine.close  # type: ignore[attr-defined]
        for port in PORTS:
            inner = getattr(engine, port)
            setattr(self, port, _FaultyCalls(inner, f"{port}.", faults, settle))
        self._calls = _FaultyCalls(engine, "", faults, None)
        self.tables = engine.tables  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)


class _FaultyCalls:
    """The calls of an engine, or of one of its ports."""

    def __init__(
        self, inner: object, prefix: str, faults: Faults, settle: Callable[[], None] | None
    ) -> None:
        self._inner = inner
        self._prefix = prefix
        self._faults = faults
        self._settle = settle

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if not callable(inner):
            return inner

        def call(*args: Any, **more: Any) -> Any:
            answer = self._faults.call(self._prefix + name, inner, *args, **more)
            if self._settle is not None:
                self._settle()
            return answer

        setattr(self, name, call)
        return call
