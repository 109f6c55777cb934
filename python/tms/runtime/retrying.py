"""Retries: the only place that decides when a failed call is repeated, for threads, coroutines and
calls to HBase.

* Pauses are exponential and jittered, and never shorter than the `retry_after_s` of an error.
* No pause goes beyond the deadline: the last error is raised instead.
* A call that succeeds at once costs nothing more: tenacity is loaded by the first failure.
* Each repetition is logged (`request_retried`), however many there are, by a `BoundedLog`.
* A call that survives an outage has the deadline of its `Outage` instead, or none; each attempt
  keeps its own time-out.
"""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tms.errors import NotOwner, TMSError
from tms.runtime.clock import Clock
from tms.runtime.events import BoundedLog, EventLog

T = TypeVar("T")

PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 2.0
LOG_FIRST_S = 1.0  # a shorter outage is not logged
LOG_AGAIN_S_MAX = 300.0  # between two log lines about one outage
_log = EventLog(__name__)
_retries = BoundedLog(__name__)


class Outage:
    """The way in which an object that reads or works continuously survives an outage of its
    service: for up to `limit_s`, without end if None, and not once `ended` is set, which also ends
    a pause. `name` is the object's name in the log.

    An outage is logged when it has lasted `LOG_FIRST_S`, then at intervals that double up to
    `LOG_AGAIN_S_MAX`, and when it is over. If another process has taken over the store, the engine
    in this process (`local`) never becomes its owner again: that is no outage.
    """

    __slots__ = ("_given_s", "_local", "ended", "limit_s", "name")

    def __init__(
        self, name: str, limit_s: float | None, ended: threading.Event, local: bool = False
    ) -> None:
        self.name = name
        self._given_s = limit_s
        self.limit_s = float("inf") if limit_s is None else limit_s
        self.ended = ended
        self._local = local

    def beside(self, name: str) -> "Outage":
        """An outage for another object, which ends by itself, with the same limit."""
        return Outage(name, self._given_s, threading.Event(), self._local)

    def includes(self, error: BaseException) -> bool:
        """True if an error may last longer than a call, and end by itself."""
        return not (self._local and isinstance(error, NotOwner))

    def begin(self, clock: Clock) -> "_Failures":
        """A call failed for the first time."""
        return _Failures(self.name, clock)


class _Failures:
    """The log lines of one outage."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._next_s = LOG_FIRST_S
        self._logged = False

    def note(self, error: BaseException, pause_s: float) -> None:
        """A call failed, and is repeated after a pause."""
        for_s = self._clock.monotonic_s() - self._began_s
        if for_s + pause_s < self._next_s:
            return
        while self._next_s <= for_s + pause_s:
            self._next_s += min(self._next_s, LOG_AGAIN_S_MAX)
        self._logged = True
        _log.warning("service_away", waiting=self._name, for_s=round(for_s, 1), error=str(error))

    def over(self) -> None:
        """A call succeeded."""
        if self._logged:
            for_s = self._clock.monotonic_s() - self._began_s
            _log.warning("service_back", waiting=self._name, away_s=round(for_s, 1))


def is_retriable(error: BaseException) -> bool:
    """True if the same call may succeed later."""
    return isinstance(error, TMSError) and error.retriable


def log_retried(request: str, error: BaseException, attempt: int, wait_s: float) -> None:
    """Log that a request is repeated after a pause, because its attempt with this number failed."""
    code = getattr(error, "code", type(error).__name__)
    _retries.info(
        "request_retried",
        request=request,
        attempt=attempt,
        wait_s=round(wait_s, 3),
        code=code,
        error=str(error),
    )


def attempt_s(timeout_s: float) -> float:
    """The time-out of one attempt that leaves time for others within `timeout_s` if its answer is
    lost."""
    return max(min(timeout_s, 1.0), timeout_s / 3)


def retrying(
    attempt: Callable[[float], T],
    clock: Clock,
    timeout_s: float,
    again: Callable[[BaseException], bool] = is_retriable,
    failed: Exception | None = None,
    hurry: threading.Event | None = None,
    outage: Outage | None = None,
    what: object = "",
) -> T:
    """`attempt(its time-out in seconds)`, repeated while `again` is true of its errors, until
    `timeout_s` or the `outage` is over. The log calls it `what`, or by the outage's name.

    `failed` is the error of the first attempt if that was made already; `hurry` ends a pause, and
    so does the end of an outage's object. Raises the last attempt's error.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    if failed is None:
        try:
            return attempt(attempt_s(timeout_s))
        except Exception as error:
            failed = error
    if not again(failed):
        raise failed
    first = [failed]
    pacing = _Pacing(clock, timeout_s, deadline_s, again, outage, what)

    def next_attempt() -> T:
        if first:
            raise first.pop()  # tenacity counts it, and pauses
        return attempt(pacing.attempt_s())

    import tenacity

    options = pacing.options()
    if outage is not None:
        hurry = outage.ended
    if hurry is not None:
        options["sleep"] = hurry.wait
    result: T = tenacity.Retrying(**options)(next_attempt)
    pacing.over()
    return result


async def retrying_async(
    attempt: Callable[[float], Awaitable[T]],
    clock: Clock,
    timeout_s: float,
    again: Callable[[BaseException], bool] = is_retriable,
    outage: Outage | None = None,
    what: object = "",
) -> T:
    """As `retrying`, for coroutines."""
    deadline_s = clock.monotonic_s() + timeout_s
    try:
        return await attempt(attempt_s(timeout_s))
    except Exception as error:
        if not again(error):
            raise
        first = [error]
    pacing = _Pacing(clock, timeout_s, deadline_s, again, outage, what)

    async def next_attempt() -> T:
        if first:
            raise first.pop()
        return await attempt(pacing.attempt_s())

    import tenacity

    result: T = await tenacity.AsyncRetrying(**pacing.options())(next_attempt)
    pacing.over()
    return result


@dataclass(slots=True)
class _Pacing:
    """The pauses and the deadline of a call that failed once."""

    clock: Clock
    timeout_s: float
    deadline_s: float
    again: Callable[[BaseException], bool]
    outage: Outage | None
    what: object
    failures: _Failures | None = None

    def __post_init__(self) -> None:
        if self.outage is not None:
            self.failures = self.outage.begin(self.clock)

    def attempt_s(self) -> float:
        """The time-out of the next attempt."""
        left_s = self._until_s(None) - self.clock.monotonic_s()
        return max(0.001, min(attempt_s(self.timeout_s), left_s))

    def over(self) -> None:
        """The call succeeded."""
        if self.failures is not None:
            self.failures.over()

    def options(self) -> dict[str, Any]:
        """The arguments of tenacity."""
        import tenacity

        jitter = tenacity.wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S)

        def pause(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked_s = error.details.get("retry_after_s", 0) if isinstance(error, TMSError) else 0
            return max(jitter(state), float(asked_s))

        def stop(state: tenacity.RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            if self.outage is not None and self.outage.ended.is_set():
                return True
            return self.clock.monotonic_s() + state.upcoming_sleep >= self._until_s(error)

        def note(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if error is None:
                return
            what = self.what or (self.outage.name if self.outage is not None else "request")
            log_retried(str(what), error, state.attempt_number, state.upcoming_sleep)
            if self.failures is not None:
                self.failures.note(error, state.upcoming_sleep)

        return {
            "wait": pause,
            "stop": stop,
            "before_sleep": note,
            "retry": tenacity.retry_if_exception(self.again),
            "reraise": True,
        }

    def _until_s(self, error: BaseException | None) -> float:
        """The end of the last possible pause, if this is the error."""
        outage = self.outage
        if outage is None or (error is not None and not outage.includes(error)):
            return self.deadline_s
        return self.deadline_s - self.timeout_s + max(self.timeout_s, outage.limit_s)
