"""When a call that failed is made again: the only place that decides it, for threads, coroutines
and calls to HBase alike.

* Pauses are exponential and jittered, and never shorter than the `retry_after_s` of an error.
* No pause goes beyond the deadline: the last error is raised instead.
* A call that succeeds at once costs nothing more: tenacity is loaded by the first failure.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tms.clock import Clock
from tms.errors import TMSError

T = TypeVar("T")

PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 2.0


def is_retriable(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, TMSError) and error.retriable


def attempt_s(timeout_s: float) -> float:
    """How long one attempt may take so that a lost answer leaves time for others within
    `timeout_s`."""
    return max(min(timeout_s, 1.0), timeout_s / 3)


def retrying(
    attempt: Callable[[float], T],
    clock: Clock,
    timeout_s: float,
    again: Callable[[BaseException], bool] = is_retriable,
    failed: Exception | None = None,
    hurry: threading.Event | None = None,
) -> T:
    """`attempt(seconds it may take)`, repeated while `again` says so of its errors and the time
    lasts.

    `failed` is the error of the first attempt when that was made already; `hurry` ends a pause.
    Raises the last attempt's error.
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

    def next_attempt() -> T:
        if first:
            raise first.pop()  # so that tenacity counts it, and pauses
        return attempt(_left_s(clock, deadline_s, timeout_s))

    import tenacity

    options = _options(clock, deadline_s, again)
    if hurry is not None:
        options["sleep"] = hurry.wait
    return tenacity.Retrying(**options)(next_attempt)


async def retrying_async(
    attempt: Callable[[float], Awaitable[T]],
    clock: Clock,
    timeout_s: float,
    again: Callable[[BaseException], bool] = is_retriable,
) -> T:
    """The same as `retrying`, for coroutines."""
    deadline_s = clock.monotonic_s() + timeout_s
    try:
        return await attempt(attempt_s(timeout_s))
    except Exception as error:
        if not again(error):
            raise
        first = [error]

    async def next_attempt() -> T:
        if first:
            raise first.pop()
        return await attempt(_left_s(clock, deadline_s, timeout_s))

    import tenacity

    return await tenacity.AsyncRetrying(**_options(clock, deadline_s, again))(next_attempt)


def _left_s(clock: Clock, deadline_s: float, timeout_s: float) -> float:
    return max(0.001, min(attempt_s(timeout_s), deadline_s - clock.monotonic_s()))


def _options(
    clock: Clock, deadline_s: float, again: Callable[[BaseException], bool]
) -> dict[str, Any]:
    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S)

    def pause(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.details.get("retry_after_s", 0) if isinstance(error, TMSError) else 0
        return max(jitter(state), float(asked_s))

    def stop(state: tenacity.RetryCallState) -> bool:
        return clock.monotonic_s() + state.upcoming_sleep >= deadline_s

    return {
        "wait": pause,
        "stop": stop,
        "retry": tenacity.retry_if_exception(again),
        "reraise": True,
    }
