"""Participants: the order in which a user's own data takes part, and the outcomes when something
fails, on an engine in this process and through HTTP."""

from collections.abc import Iterable
from typing import Any

import pytest

import tms
from tests.contracts.buses import EmbeddedBus, HttpBus
from tests.contracts.transaction_contract import values
from tms.client.participants import Transacted
from tms.errors import (
    Closed,
    CommitUnfinished,
    Conflict,
    Invalid,
    PostCommitFailed,
    StorageFull,
    TimedOut,
    TransactionConflict,
    TransactionEnded,
    Unavailable,
)
from tms.model.transaction import Commit

PORT = {"begin", "describe", "abort", "invalidate", "commit"}
IN_DOUBT = r"not known|may or may not be stored"  # the latter on a machine that is slow


class Tale:
    """A participant that notes its calls, and fails where scripted."""

    def __init__(self, name: str, told: list[str], fails: str = "", keys: Iterable[bytes] = ()):
        self.name, self.told, self.fails, self.keys = name, told, fails, keys

    def _note(self, what: str) -> None:
        self.told.append(f"{self.name} {what}")
        if what == self.fails:
            raise OSError(f"{self.name} cannot {what}")

    def start(self, transaction: Transacted) -> str:
        self._note("start")
        return self.name

    def changes(self) -> Iterable[bytes]:
        self._note("changes")
        return self.keys

    def persist(self, request: Commit) -> Commit:
        self._note("persist")
        return request

    def post_commit(self) -> None:
        self._note("post_commit")

    def roll_back(self) -> None:
        self._note("roll_back")


class Deciding(Tale):
    """A participant whose own commit decides."""

    decided = False

    def persist(self, request: Commit) -> Commit:
        super().persist(request)
        self.decided = True
        return request


class Spied:
    """Transactions below a bus that note the requests; a commit may lose its answer."""

    def __init__(self, inner: Any, told: list[str]) -> None:
        self._inner, self._told = inner, told
        self.lost: set[str] = set()  # names of commits whose answers are lost
        self.unreachable = False

    def __getattr__(self, name: str) -> Any:
        if name not in PORT:
            return getattr(self._inner, name)

        def call(*args: Any, **more: Any) -> Any:
            if self.unreachable:
                raise Unavailable("The service cannot be reached.")
            answer = getattr(self._inner, name)(*args, **more)
            if name not in ("begin", "describe"):
                self._told.append(f"tms {name}")
            if name in self.lost:
                self.unreachable = True
                raise Unavailable("The connection ended.")
            return answer

        return call


class ParticipantContract:
    @pytest.fixture(autouse=True)
    def topic(self, bus: tms.Bus) -> None:
        bus.create_topic("in", durability="written")

    @pytest.fixture
    def told(self) -> list[str]:
        return []

    @pytest.fixture
    def spied(self, bus: tms.Bus, told: list[str], monkeypatch: pytest.MonkeyPatch) -> Spied:
        found = Spied(bus._transport.transactions, told)
        transport: Any = bus._transport
        if isinstance(getattr(type(transport), "transactions", None), property):
            monkeypatch.setattr(type(transport), "transactions", found)
        else:
            monkeypatch.setattr(transport, "transactions", found)
        return found

    def test_messages_are_the_last_to_persist(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        with bus.transaction() as tx:
            assert tx.join(Tale("a", told)) == "a"
            tx.join(Tale("b", told))
            tx.send("in", b"1")
        assert told == [
            "a start",
            "b start",
            "a changes",
            "b changes",
            "a persist",
            "b persist",
            "tms commit",
            "a post_commit",
            "b post_commit",
        ]
        assert values(bus, "in") == [b"1"]

    def test_an_error_that_may_pass_rolls_back_too(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        tx = bus.transaction()
        one = Tale("a", told)
        tx.join(one)

        def full(_: Commit) -> Commit:
            raise StorageFull("The disk is full.")

        one.persist = full  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            tx.commit()
        assert told[-2:] == ["a roll_back", "tms abort"]

    @pytest.mark.parametrize("fails", ["changes", "persist"])
    def test_what_fails_rolls_back_everything_in_reverse(
        self, bus: tms.Bus, told: list[str], spied: Spied, fails: str
    ) -> None:
        tx = bus.transaction()
        tx.join(Tale("a", told))
        tx.join(Tale("b", told, fails))
        tx.send("in", b"1")
        id = tx.id
        with pytest.raises(OSError, match="b cannot"):
            tx.commit()
        assert told[-3:] == ["b roll_back", "a roll_back", "tms abort"]
        assert bus._transport.transactions.describe(id).outcome == "aborted"
        assert values(bus, "in", isolation="uncommitted") == []
        with pytest.raises(Closed):
            tx.commit()

    def test_an_exception_in_the_block_rolls_back(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
            tx.join(Tale("a", told))
            _ = 1 / 0
        assert told == ["a start", "a roll_back", "tms abort"]

    def test_one_that_does_not_start_does_not_take_part(
        self, bus: tms.Bus, told: list[str]
    ) -> None:
        with bus.transaction() as tx:
            with pytest.raises(OSError):
                tx.join(Tale("a", told, "start"))
            tx.send("in", b"1")
        assert told == ["a start"]
        assert values(bus, "in") == [b"1"]

    def test_a_transaction_whose_roll_back_failed_is_invalid(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        tx = bus.transaction()
        tx.join(Tale("a", told))
        tx.join(Tale("b", told, "roll_back"))
        id = tx.id
        with pytest.raises(ZeroDivisionError) as caught, tx:
            _ = 1 / 0
        assert told[-3:] == ["b roll_back", "a roll_back", "tms invalidate"]
        assert "b cannot roll_back" in caught.value.__notes__[0]
        assert bus._transport.transactions.describe(id).outcome == "invalid"
        other = bus.transaction()
        other.join(Tale("c", told, "roll_back"))
        with pytest.raises(OSError, match="c cannot roll_back"):
            other.abort()
        other.abort()

    def test_of_two_that_changed_the_same_key_one_is_rolled_back(
        self, bus: tms.Bus, told: list[str]
    ) -> None:
        late, early = bus.transaction(), bus.transaction()
        for tx, name in ((late, "late"), (early, "early")):
            tx.join(Tale(name, told, keys=[b"row"]))
        early.commit()
        with pytest.raises(TransactionConflict):
            late.commit()
        assert told[-1] == "late roll_back"

    def test_a_position_that_somebody_moved_rolls_back(self, bus: tms.Bus, told: list[str]) -> None:
        bus.publish("in", b"1")
        consumer = bus.consumer("in", group="g", stop_at_end=True)
        list(consumer)
        bus.set_positions("in", {0: "offset:0"}, group="g")
        tx = bus.transaction()
        tx.join(Tale("a", told))
        tx.ack(consumer)
        with pytest.raises(Conflict):
            tx.commit()
        assert told[-1] == "a roll_back"

    def test_a_commit_that_fails_is_rolled_back_and_can_never_happen(
        self, bus: tms.Bus, told: list[str]
    ) -> None:
        tx = bus.transaction()
        tx.join(Tale("a", told))
        tx.send("in", b"1")
        bus.delete_topic("in")
        with pytest.raises(tms.TMSError):
            tx.commit()
        assert told[-1] == "a roll_back"
        assert bus._transport.transactions.describe(tx._id).outcome == "invalid"

    def test_a_failing_post_commit_does_not_undo_the_commit(
        self, bus: tms.Bus, told: list[str]
    ) -> None:
        tx = bus.transaction()
        tx.join(Tale("a", told, "post_commit"))
        tx.join(Tale("b", told))
        tx.send("in", b"1")
        with pytest.raises(PostCommitFailed, match="stays so") as caught:
            tx.commit()
        assert caught.value.details == {"transaction": tx._id}
        assert told[-2:] == ["a post_commit", "b post_commit"]
        assert values(bus, "in") == [b"1"]

    def test_a_commit_whose_answer_is_lost_is_not_rolled_back_until_its_outcome_is_known(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        tx = bus.transaction(timeout_s=1.0)  # enough for the steps before the commit
        tx.join(Tale("a", told))
        tx.send("in", b"1")
        spied.lost = {"commit"}
        with pytest.raises(TimedOut, match=IN_DOUBT):
            tx.commit()
        with pytest.raises(TimedOut, match="not known"):
            tx.abort()
        spied.lost, spied.unreachable = set(), False
        with pytest.raises(TransactionEnded, match="committed"):
            tx.abort()
        assert "a roll_back" not in told and "a post_commit" not in told
        tx.commit()
        assert told.count("a persist") == told.count("a post_commit") == 1
        assert values(bus, "in") == [b"1"]

    def test_a_commit_that_never_arrived_can_be_given_up_later(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        tx = bus.transaction(timeout_s=0.1)
        tx.join(Tale("a", told))
        tx.send("in", b"1")
        spied.unreachable = True
        with pytest.raises(TimedOut, match=IN_DOUBT):
            tx.commit()
        assert "a roll_back" not in told
        spied.unreachable = False
        tx.abort()
        assert told[-1] == "a roll_back"
        assert bus._transport.transactions.describe(tx._id).outcome == "invalid"

    def test_one_that_decides_is_alone(self, bus: tms.Bus, told: list[str]) -> None:
        for first, second in ((Tale, Deciding), (Deciding, Tale), (Deciding, Deciding)):
            with pytest.raises(Invalid, match="the only one"), bus.transaction() as tx:
                tx.join(first("a", told))
                tx.join(second("b", told))
        assert "b start" not in told

    def test_what_was_decided_is_not_rolled_back_and_not_to_be_done_again(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        for lost in ("commit", ""):
            tx = bus.transaction(timeout_s=0.1)
            tx.join(Deciding("a", told))
            tx.send("in", b"1")
            spied.lost, spied.unreachable = {lost}, not lost
            with pytest.raises(CommitUnfinished) as caught:
                tx.commit()
            assert not caught.value.retriable
            tx.abort()
            spied.lost, spied.unreachable = set(), False
        assert [one for one in told if one.startswith("a")] == [
            "a start",
            "a changes",
            "a persist",
        ] * 2

    def test_one_that_decides_commits_without_any_message(
        self, bus: tms.Bus, told: list[str]
    ) -> None:
        with bus.transaction() as tx:
            tx.join(Deciding("a", told))
        assert told == ["a start", "a changes", "a persist", "a post_commit"]

    def test_one_that_could_not_decide_is_rolled_back(
        self, bus: tms.Bus, told: list[str], spied: Spied
    ) -> None:
        tx = bus.transaction()
        tx.join(Deciding("a", told, "persist"))
        with pytest.raises(OSError):
            tx.commit()
        assert told == ["a start", "a changes", "a persist", "a roll_back"]


class TestEmbedded(EmbeddedBus, ParticipantContract): ...


class TestHttp(HttpBus, ParticipantContract): ...
