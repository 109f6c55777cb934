"""Clients of a service whose processes are killed: the history that they saw is checked.

Writers commit transactions over two topics, a group makes a message of each message, readers read,
workers settle the messages of a queue, and delayed messages are published, all through HTTP and
with patience; meanwhile the test kills processes. `sim.rules.checker` has the rules of logs; for
queues and delayed messages they are that no acknowledged message is lost, a settled message is
never handed out again, and a delayed one comes once and not before it is due.
"""

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Self

import tms
from integration.cluster.site import free_ports
from sim.history import (
    Asked,
    Crashed,
    Done,
    Ended,
    Final,
    History,
    Place,
    Read,
    Sent,
    metadata_of,
)
from sim.rules.checker import check
from tests.waiting import busily
from tms.client.client import Bus
from tms.errors import Conflict, TMSError
from tms.model.position import Position
from tms.model.topic import DEFAULT_NAMESPACE

A, B, MADE = ("a", 0), ("b", 0), ("made", 0)
PLACES: tuple[Place, ...] = (A, B, MADE)
JOBS, LATER = "jobs", "later"
DELAY_S = 1.0
PATIENCE_S = 60.0
PACE_S = 0.02  # between two calls of a client: what serves it needs the processor, too
END_S = 90.0  # time for every client to end
ON_S = 90.0  # time for every client to make progress; a quiet machine needs half a second


class Run:
    """The shared state of the clients of one run."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self.history = History()
        self.stop = threading.Event()
        self.jobs: list[str] = []  # acknowledged ones
        self.settled: set[str] = set()  # jobs whose settlement was acknowledged
        self.again: list[str] = []  # jobs that were handed out after that
        self.later: dict[str, float] = {}  # acknowledged ones, with their due times
        self._settling = threading.Lock()

    def settle(self, values: set[str], before: set[str]) -> None:
        """Note that a worker got these values, while those in `before` had already been settled."""
        with self._settling:
            self.again += values & before

    def snapshot(self) -> set[str]:
        """The settled values now."""
        with self._settling:
            return set(self.settled)

    def note_settled(self, values: set[str]) -> None:
        """Note that the settlement of these values was acknowledged."""
        with self._settling:
            self.settled |= values

    def topic(self, name: str) -> str:
        """The topic of this name, in the namespace of the run."""
        return f"{self.namespace}:{name}"

    def bus(self) -> Bus:
        """A bus with patience for a service that starts again."""
        return tms.connect(self.url, timeout_s=busily(PATIENCE_S))


def write(run: Run, name: str) -> None:
    """Commit transactions over two topics; each gets an answer in the end."""
    history, number = run.history, 0
    with run.bus() as bus:
        while not run.stop.wait(PACE_S):
            number += 1
            tx_name = f"{name}-{number}"
            for place in (A, B):
                values = tuple(f"{tx_name}.{place[0]}.{n}" for n in range(2))
                history.add(Sent(history.now(), place, values, tx_name))
            history.add(Asked(history.now(), tx_name))
            tx = bus.transaction(durability="synced")
            for place in (A, B):
                for n in range(2):
                    tx.send(run.topic(place[0]), f"{tx_name}.{place[0]}.{n}".encode())
            try:
                tx.commit()
            except TMSError:
                continue  # its outcome stays unknown
            history.add(Ended(history.now(), tx_name, committed=True))


def read(run: Run, name: str, place: Place) -> None:
    """Read to the end over and over; now and then from the beginning."""
    history, random, turn, after = run.history, Random(name), 0, ""
    with run.bus() as bus:
        while not run.stop.wait(PACE_S):
            if random.random() < 0.02:
                turn, after = turn + 1, ""
            began = history.now()
            start = Position.parse(f"after:{after}") if after else Position.earliest()
            page = bus.fetch(run.topic(place[0]), {0: start})
            seen = tuple((str(m.id), (m.value or b"").decode()) for m in page.messages())
            history.add(
                Read(began, name, turn, place, True, after, seen, history.now(), held_by="?")
            )
            after = seen[-1][0] if seen else after


def transform(run: Run, name: str) -> None:
    """Make a message of each message of `a`, in a group with other members."""
    history, number = run.history, 0
    with run.bus() as bus:
        while not run.stop.wait(PACE_S):
            topic = run.topic("a")
            consumer = bus.consumer(topic, group="g", stop_at_end=True, bytes_max=2_000)
            for batch in consumer.batches():
                messages = list(batch.messages())
                number += 1
                tx_name = f"{name}-{number}"
                sources = tuple((m.value or b"").decode() for m in messages)
                values = tuple(f"{tx_name}.{n}" for n in range(len(sources)))
                history.add(Sent(history.now(), MADE, values, tx_name, sources))
                moves = (("g", A, str(messages[-1].id)),)
                history.add(Asked(history.now(), tx_name, moves))
                tx = bus.transaction(durability="synced")
                for value in values:
                    tx.send(run.topic("made"), value.encode())
                tx.ack(consumer)
                try:
                    tx.commit()
                except Conflict:
                    history.add(Ended(history.now(), tx_name, committed=False))
                    break
                except TMSError:
                    break
                history.add(Ended(history.now(), tx_name, committed=True))
                if run.stop.is_set():
                    break


def publish_jobs(run: Run) -> None:
    """Publish jobs for workers; unacknowledged ones may be there."""
    number = 0
    with run.bus() as bus:
        while not run.stop.wait(PACE_S):
            number += 1
            try:
                bus.publish(run.topic(JOBS), b"job-%d" % number)
            except TMSError:
                continue
            run.jobs.append(f"job-{number}")


def settle_jobs(run: Run, until_empty: bool = False) -> None:
    """Settle the messages of the queue, until the end of the run or of the queue."""
    with run.bus() as bus:
        jobs = run.topic(JOBS)
        queue = bus.queue(jobs, group="workers", start="earliest", lease_s=2.0, deliveries_max=0)
        while until_empty or not run.stop.is_set():
            before = run.snapshot()
            try:
                messages = queue.receive(limit=8, wait_s=1)
                got = {(message.value or b"").decode() for message in messages}
                run.settle(got, before)
                if got:
                    queue.ack(messages)
            except TMSError:  # the next worker that leases them settles them
                continue
            run.note_settled(got)
            if until_empty and not got and run.settled >= set(run.jobs):
                return


def publish_later(run: Run) -> None:
    """Publish delayed messages."""
    number = 0
    with run.bus() as bus:
        while not run.stop.wait(0.1):
            number += 1
            value = f"later-{number}"
            due_s = time.time() + DELAY_S
            try:
                bus.publish_later(run.topic(LATER), value.encode(), delay=DELAY_S)
            except TMSError:
                continue
            run.later[value] = due_s


def finish_queue(run: Run) -> None:
    """Check that every job was settled, and that no settled one came again."""
    ended_s = time.monotonic() + busily(END_S)
    settle_jobs(run, until_empty=True)
    assert time.monotonic() < ended_s, "the queue did not become empty in time"
    assert run.again == []


def finish_later(run: Run) -> None:
    """Check that every acknowledged message came, once, and not before it was due."""
    ended_s = time.monotonic() + busily(END_S)
    with run.bus() as bus:
        while True:
            found = list(bus.consumer(run.topic(LATER), stop_at_end=True))
            came = Counter((message.value or b"").decode() for message in found)
            if came.keys() >= run.later.keys():
                break
            assert time.monotonic() < ended_s, sorted(run.later.keys() - came.keys())[:5]
            time.sleep(0.2)
    early = [
        m.value
        for m in found
        if m.id.time_ms < 1000 * run.later.get((m.value or b"").decode(), 0) - 5
    ]
    assert not early
    assert [value for value in run.later if came[value] > 1] == []


def finish(run: Run) -> None:
    """Read the final messages into the history."""
    history = run.history
    with run.bus() as bus:
        for place in PLACES:
            found = bus.consumer(run.topic(place[0]), stop_at_end=True)
            messages = tuple((str(m.id), (m.value or b"").decode()) for m in found)
            history.add(Final(history.now(), place, messages))
        for position in bus.positions(run.topic("a"), group="g").values():
            id = str(position.id)  # an ack commits no metadata; simulated groups do
            history.add(Done(history.now(), "g", A, id, "made", metadata_of(id)))


class Progress(NamedTuple):
    """The progress of the clients, each kind by itself."""

    commits: int
    reads: int
    jobs: int
    settled: int
    later: int

    @classmethod
    def of(cls, run: Run) -> Self:
        """The progress so far: the number of acknowledged operations."""
        events = run.history.events
        commits = sum(isinstance(event, Ended) and event.committed for event in events)
        reads = sum(isinstance(event, Read) for event in events)
        return cls(commits, reads, len(run.jobs), len(run.settled), len(run.later))


STEP = Progress(commits=10, reads=10, jobs=5, settled=5, later=3)


class Clients:
    """All clients, each in a thread; the service at `url` has to run when they start."""

    def __init__(self, url: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.run = Run(url, namespace)
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Make the topics, and begin."""
        with self.run.bus() as bus:
            for topic in (*(topic for topic, _ in PLACES), JOBS, LATER):
                bus.create_topic(self.run.topic(topic))
        for number in range(2):
            self._go(write, f"w{number}")
        for number in range(2):
            self._go(transform, f"t{number}")
        for place in PLACES:
            self._go(read, f"r-{place[0]}", place)
        self._go(publish_jobs)
        self._go(publish_later)
        for _ in range(2):
            self._go(settle_jobs)

    def get_on(self) -> None:
        """Wait until each kind of client has done a little more: faults then hit busy clients, and
        earlier faults are over."""
        goal = Progress(*map(sum, zip(Progress.of(self.run), STEP, strict=True)))
        ended_s = time.monotonic() + busily(ON_S)
        while any(now < then for now, then in zip(Progress.of(self.run), goal, strict=True)):
            assert not self._failures, self._failures
            assert time.monotonic() < ended_s, f"no progress: {Progress.of(self.run)} of {goal}"
            time.sleep(0.05)

    def killed(self) -> None:
        """Note that a process that stores was killed."""
        self.run.history.add(Crashed(self.run.history.now(), power=False))

    def check(self) -> int:
        """End, read everything and check it; returns the number of committed transactions."""
        self.run.stop.set()
        for thread in self._threads:
            thread.join(busily(END_S))
        assert not self._failures, self._failures
        frames = sys._current_frames()
        stuck = [
            "".join(traceback.format_stack(frames.get(thread.ident or 0)))
            for thread in self._threads
            if thread.is_alive()
        ]
        assert not stuck, "\n".join(stuck)
        finish(self.run)
        finish_queue(self.run)
        finish_later(self.run)
        findings = check(self.run.history)
        assert not findings, findings[:10]
        return sum(one.committed for one in self.run.history.of(Ended))

    def _go(self, work: Callable[..., None], *arguments: object) -> None:
        def guarded() -> None:
            try:
                work(self.run, *arguments)
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        self._threads.append(thread)


def free_port() -> int:
    """A port at which no process listens, and that no outgoing connection gets."""
    (port,) = free_ports(1)
    return port
