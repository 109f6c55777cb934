"""Leases that a program keeps: for as long as it handles a message, and no more of them than it
handles soon."""

import threading
from collections.abc import Iterable

import pytest

from tests.clocks import ManualClock
from tests.waiting import PATIENCE_S
from tms.block.received import Delivered
from tms.client.leases import AHEAD_MAX, Leases, Pace
from tms.errors import Unavailable
from tms.model.ids import MessageId
from tms.model.queue import Token, TokenResult

LEASE_S = 9.0


def message(offset: int, deliveries: int = 1) -> Delivered:
    token = Token(0, offset, deliveries, 7)
    return Delivered("jobs", 0, offset, MessageId(1, offset), None, b"", {}, deliveries, str(token))


class Service:
    """A stand-in that extends leases."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[list[str]] = []
        self.fenced: set[str] = set()
        self.down = False
        self.leases = Leases(self.extend, lambda: LEASE_S, self.clock, "the queue g of t")

    def extend(self, tokens: list[str]) -> TokenResult:
        if self.down:
            raise Unavailable("It is down.")
        each = [str(one) for token in tokens for one in Token.parse(token).each()]
        self.asked.append(each)
        return TokenResult(len(each), tuple(sorted(self.fenced & set(each))))

    def pass_s(self, seconds: float) -> None:
        self.clock.pass_ms(round(seconds * 1_000))
        self.leases.extend()


def tokens(messages: Iterable[Delivered]) -> list[str]:
    return [one.token for one in messages]


def test_leases_are_extended_at_a_third_of_their_time_while_they_are_kept() -> None:
    service = Service()
    first, second = message(0), message(4)
    kept = service.leases.keep([first, second])
    service.pass_s(2.9)
    assert service.asked == []
    service.pass_s(0.2)
    assert service.asked == [tokens([first, second])]
    service.pass_s(1)
    service.leases.release(kept[0])
    service.pass_s(2)
    assert service.asked[1:] == [tokens([second])]
    service.leases.release(kept[1])
    service.pass_s(60)
    assert len(service.asked) == 2


def test_what_was_acknowledged_is_not_extended_and_what_could_not_be_still_is() -> None:
    service = Service()
    first, second, third = message(0), message(1), message(2)
    kept = service.leases.keep([first, second, third])
    with service.leases.settling([str(Token(0, 0, 1, 7, 2)), third.token + ".1"]):
        pass
    service.pass_s(4)
    assert service.asked == [] and all(one.settled for one in kept)
    (again,) = service.leases.keep([message(9)])
    with pytest.raises(Unavailable), service.leases.settling([message(9).token]):
        raise Unavailable("It is down.")
    service.pass_s(4)
    assert service.asked == [tokens([message(9)])] and not again.settled


def test_a_token_of_another_delivery_settles_nothing_that_is_kept() -> None:
    service = Service()
    (kept,) = service.leases.keep([message(0, deliveries=2)])
    for other in (message(0, deliveries=1), message(1, deliveries=2)):
        with service.leases.settling([other.token]):
            pass
    assert not kept.settled


def test_an_extension_that_fails_is_tried_again_and_one_that_is_refused_is_lost() -> None:
    service = Service()
    one, other = message(0), message(1)
    kept = service.leases.keep([one, other])
    service.down = True
    with pytest.raises(Unavailable):
        service.pass_s(4)
    service.down, service.fenced = False, {one.token}
    service.pass_s(0)
    assert [each.lost for each in kept] == [True, False]
    service.pass_s(4)
    assert service.asked[1:] == [tokens([other])]


def test_a_message_that_is_kept_twice_is_kept_until_both_have_released_it() -> None:
    service = Service()
    (first,), (second,) = service.leases.keep([message(0)]), service.leases.keep([message(0)])
    assert first is second
    service.leases.release(first)
    service.pass_s(4)
    assert len(service.asked) == 1
    service.leases.release(second)
    service.pass_s(4)
    assert len(service.asked) == 1


def test_what_is_handed_to_a_transaction_is_extended_until_it_is_released() -> None:
    service = Service()
    (kept,) = service.leases.keep([message(0)])
    service.leases.hand_over([message(0).token])
    service.pass_s(4)
    assert kept.settled and len(service.asked) == 1


def test_an_acknowledgement_waits_for_an_extension_that_is_under_way() -> None:
    service = Service()
    (kept,) = service.leases.keep([message(0)])
    extending, go_on = threading.Event(), threading.Event()
    said: list[str] = []

    def extend(tokens: list[str]) -> TokenResult:
        extending.set()
        go_on.wait(PATIENCE_S)
        said.append("extended")
        return TokenResult(1)

    service.leases._extend = extend
    service.clock.pass_ms(4_000)
    thread = threading.Thread(target=service.leases.extend)
    thread.start()
    assert extending.wait(PATIENCE_S)

    def give_back() -> None:
        with service.leases.settling([message(0).token]):
            said.append("given back")

    other = threading.Thread(target=give_back)
    other.start()
    go_on.set()
    thread.join(PATIENCE_S)
    other.join(PATIENCE_S)
    assert said == ["extended", "given back"] and kept.settled


def test_a_handler_leases_as_much_ahead_as_it_does_in_a_second() -> None:
    pace = Pace(30, 16)
    assert pace.limit == 1
    limits = []
    for _ in range(6):
        pace.took(0.001)
        limits.append(pace.limit)
    assert limits == [2, 4, 8, 16, 16, AHEAD_MAX]
    for _ in range(3):
        pace.took(5)
    assert pace.limit == 1
    slow = Pace(0.4, 16)
    for _ in range(9):
        slow.took(0.05)
    assert slow.limit == 2  # a quarter of a lease
    once = Pace(30, 1)
    once.took(0)
    assert once.limit == 1


def test_what_was_leased_before_a_fork_is_the_parents() -> None:
    service = Service()
    (kept,) = service.leases.keep([message(0)])
    service.leases._forked()
    service.pass_s(4)
    assert service.asked == [] and kept.lost and kept.settled
    (again,) = service.leases.keep([message(0, deliveries=2)])
    service.leases.release(kept)
    service.pass_s(4)
    assert len(service.asked) == 1 and not again.lost
