"""Writing to a partition that others may take over: while a request is confirmed, the next one is
written."""

import threading

import pytest

from tests.log_kit import MANY, NAME, SEGMENTS, block
from tests.owners_kit import Later, Processes
from tests.waiting import until
from tms.errors import StorageUnavailable, WrongLastId
from tms.log import writer
from tms.log.pending import PendingAppend
from tms.model import keys
from tms.model.message import NOTHING, NewBlock
from tms.store.base import MapRow


class _Held:
    """Two processes, the first of which writes every request by itself; its checks of ownership are
    held back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "GROUP_BYTES", 1)
        self.both = Processes()
        self.both.publish(0, b"first")
        self.writes = threading.Semaphore(0)
        self.may_write, self.may_ask = threading.Event(), threading.Event()
        self.lost_answers = 0
        self.both.stores[0].before = self._before

    def _before(self, operation: str, name: str) -> None:
        if operation == "write" and name.startswith(SEGMENTS):
            self.writes.release()
            assert self.may_write.wait(10)
        elif operation == "get" and name == "metadata":
            assert self.may_ask.wait(10)
            if self.lost_answers:
                self.lost_answers -= 1
                raise StorageUnavailable("No answer came.")

    def write_two(self) -> list[PendingAppend]:
        """Write two requests, and confirm neither."""
        values = (b"a", b"b")
        pendings = [self._submit(value, producer) for producer, value in enumerate(values, 1)]
        self.may_write.set()
        assert self.writes.acquire(timeout=10)
        assert self.writes.acquire(timeout=10), "the second write waits for the first's owner"
        return pendings

    def _submit(self, value: bytes, producer: int) -> PendingAppend:
        made = block(value, producer=producer, sequence=0)
        pending = self.both.engines[0].submit(NAME, [NewBlock(0, made)], None)
        if producer == 1:
            assert self.writes.acquire(timeout=10)
            self.writes.release()
        return pending


def test_the_next_request_is_written_while_the_owner_of_the_one_before_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    pendings = held.write_two()
    assert not any(one.done() for one in pendings), "acknowledged before it was confirmed"
    assert [one.value for one in held.both.read(0)] == [b"first"]
    held.may_ask.set()
    assert [one.result(10)[0].base_offset for one in pendings] == [1, 2]
    assert held.both.values(0) == [b"first", b"a", b"b"]


def test_what_is_written_behind_a_request_that_lost_its_owner_fails_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    pendings = held.write_two()
    until(lambda: len(_rows(held.both, 0)) == 3)
    held.both.publish(1, b"other")
    held.may_ask.set()
    for one in pendings:
        with pytest.raises(StorageUnavailable, match="taken over"):
            one.result(10)
    assert held.both.publish(0, b"b", producer=2, sequence=0).duplicate
    assert held.both.values(0) == [b"first", b"a", b"b", b"other"]


def test_what_is_written_behind_a_request_that_may_have_lost_its_owner_fails_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    held.lost_answers = 1
    pendings = held.write_two()
    held.may_ask.set()
    for one in pendings:
        with pytest.raises(StorageUnavailable, match="No answer came"):
            one.result(10)
    assert held.both.values(0) == [b"first"], "a reader sees past what nobody knows"
    assert held.both.publish(0, b"b", producer=2, sequence=0).duplicate
    assert held.both.values(0) == [b"first", b"a", b"b"]


def test_what_follows_a_request_that_may_have_lost_its_owner_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "GROUPS_IN_A_ROW", 1)  # it is not written behind it
    held = _Held(monkeypatch)
    held.lost_answers = 1
    pendings = [held._submit(b"a", 1), held._submit(b"b", 2)]
    held.may_write.set()
    held.may_ask.set()
    with pytest.raises(StorageUnavailable, match="No answer came"):
        pendings[0].result(10)
    assert pendings[1].result(10)[0].base_offset == 2
    assert held.both.values(0) == [b"first", b"a", b"b"]


def test_a_caller_that_writes_keeps_the_partition_until_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    engine, placed = held.both.engines[0], []

    def append() -> None:
        placed.extend(engine.append(NAME, [NewBlock(0, block(b"a"))], None, 10))

    thread = threading.Thread(target=append)
    thread.start()
    assert held.writes.acquire(timeout=10)
    behind = engine.submit(NAME, [NewBlock(0, block(b"b"))], None)
    held.may_write.set()
    held.writes.acquire(timeout=0.2)  # nothing is written now; a write would have the wrong place
    held.may_ask.set()
    thread.join(10)
    assert [one.base_offset for one in (*placed, *behind.result(10))] == [1, 2]
    assert held.both.values(0) == [b"first", b"a", b"b"]


def test_requests_are_confirmed_when_no_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)
    threads = Later()
    one = Processes(1, lambda: threads)
    made = [[NewBlock(0, block(b"%d" % number))] for number in range(40)]
    pendings = [one.engines[0].submit(NAME, request, None) for request in made]
    threads.tasks.popleft()()
    assert [pending.result(0)[0].base_offset for pending in pendings] == list(range(40))
    threads.run()
    assert len(one.read(0)) == 40


def test_what_is_not_confirmed_yet_counts_for_a_request_that_expects_another_last_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)
    threads = Later()
    one = Processes(1, lambda: threads)
    made = [[NewBlock(0, block(value), NOTHING)] for value in (b"a", b"b")]
    pendings = [one.engines[0].submit(NAME, request, None) for request in made]
    threads.tasks.popleft()()
    assert pendings[0].result(0)[0].base_offset == 0
    with pytest.raises(WrongLastId):
        pendings[1].result(0)
    threads.run()
    assert one.values(0) == [b"a"]


def _rows(processes: Processes, number: int) -> list[MapRow]:
    uid = processes.engines[0].topics.registry.find(NAME).uid
    return [*processes.kept.open(keys.segment_map(uid, 0, number), False).scan(None, None, MANY)]
