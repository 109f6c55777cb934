"""One rule for repeating a call, whether it blocks, is a coroutine, or goes to HBase."""

import asyncio
from collections.abc import Callable

import pytest

from tms.errors import Invalid, TMSError, Unavailable
from tms.runtime.clock import SystemClock
from tms.runtime.retrying import attempt_s, is_retriable, retrying, retrying_async

Retry = Callable[..., str]


def blocking(attempt: Callable[[float], str], timeout_s: float, **options: object) -> str:
    return retrying(attempt, SystemClock(), timeout_s, **options)


def coroutine(attempt: Callable[[float], str], timeout_s: float, **options: object) -> str:
    async def begin(left_s: float) -> str:
        return attempt(left_s)

    return asyncio.run(retrying_async(begin, SystemClock(), timeout_s, **options))


class Flaky:
    """Fails with each of `errors` in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.allowed_s: list[float] = []

    def __call__(self, left_s: float) -> str:
        self.allowed_s.append(left_s)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


both = pytest.mark.parametrize("retry", [blocking, coroutine])


@both
def test_a_call_is_repeated_until_it_succeeds(retry: Retry) -> None:
    call = Flaky(Unavailable("one"), Unavailable("two"))
    assert retry(call, 30) == "done"
    assert len(call.allowed_s) == 3
    assert all(0 < left_s <= attempt_s(30) for left_s in call.allowed_s)


@both
def test_an_error_that_is_not_retriable_ends_it_at_once(retry: Retry) -> None:
    for errors in ([Invalid("no")], [Unavailable("later"), Invalid("no")]):
        call = Flaky(*errors)
        with pytest.raises(Invalid):
            retry(call, 30)
        assert len(call.allowed_s) == len(errors)


@both
def test_what_is_worth_repeating_is_the_callers_to_say(retry: Retry) -> None:
    call = Flaky(KeyError("lost"))
    assert retry(call, 30, again=lambda error: isinstance(error, KeyError)) == "done"
    with pytest.raises(Unavailable):
        retry(Flaky(Unavailable("later")), 30, again=lambda error: False)


@both
def test_the_last_error_is_raised_when_the_time_is_over(retry: Retry) -> None:
    errors = [Unavailable(f"{n}") for n in range(10_000)]
    call = Flaky(*errors)
    with pytest.raises(Unavailable) as raised:
        retry(call, 0.1)
    assert raised.value is errors[len(call.allowed_s) - 1]
    assert call.allowed_s[-1] <= attempt_s(0.1)


@both
def test_no_pause_is_shorter_than_what_the_service_asked_for(retry: Retry) -> None:
    call = Flaky(Unavailable("busy", retry_after_s=40))
    with pytest.raises(Unavailable):
        retry(call, 30)  # its time is over before the pause
    assert len(call.allowed_s) == 1


def test_the_first_attempt_may_have_been_made_already() -> None:
    call = Flaky()
    assert blocking(call, 30, failed=Unavailable("then")) == "done"
    assert len(call.allowed_s) == 1
    with pytest.raises(Invalid):
        blocking(call, 30, failed=Invalid("then"))
    assert len(call.allowed_s) == 1


def test_only_errors_of_tms_say_that_they_are_retriable() -> None:
    assert is_retriable(Unavailable("later"))
    assert not is_retriable(TMSError("no")) and not is_retriable(OSError())
