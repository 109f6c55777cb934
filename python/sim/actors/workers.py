"""Workers of a queue: they receive messages and acknowledge, nack, release or reject them, settle
them in a transaction together with output, or disappear."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sim.actors.actor import JOBS, LINES, text_of
from sim.actors.committers import commit, making
from sim.history import Asked, Handled, Job, Place, Sent, Taken
from sim.world import World, quietly
from tms.block.received import Delivered
from tms.errors import TMSError
from tms.model.queue import QueueSettings, Settlement, Token, TokenResult
from tms.model.topic import Durability, TopicName

LEASE_S = 1.0
HOWS = ("ack", "ack", "made", "release", "nack", "extend", "reject")


class Work(NamedTuple):
    """A queue: its messages, its dead-letter places, and the place of the workers' output."""

    group: str
    place: Place
    dead: tuple[Place, ...]
    handled: Place
    settings: QueueSettings

    @property
    def topic(self) -> TopicName:
        """The topic whose messages it hands out."""
        return TopicName.parse(self.place[0])


SETTINGS = QueueSettings(
    lease_s=LEASE_S,
    deliveries_max=8,
    backoff_first_s=0.5,
    backoff_max_s=3.0,
    durability=Durability.SYNCED,
)
PLAIN = Work("workers", JOBS, (("jobs-workers-dead", 0),), ("handled", 0), SETTINGS)
ORDERED = Work(
    "clerks",
    LINES,
    (("lines-clerks-dead", 0), ("lines-clerks-dead", 1)),
    ("handled", 1),
    replace(SETTINGS, ordered_by="key"),
)
WORKS = (PLAIN, ORDERED)


class Worker:
    """A worker of a queue that has several."""

    def __init__(self, world: World, name: str, queue: Work) -> None:
        self._world = world
        self._name = name
        self._queue = queue
        self._topic = queue.topic
        self._made = 0
        self._jobs: list[Delivered] = []
        self._again: Callable[[], bool] | None = None  # a request without an answer

    def step(self) -> None:
        """Receive messages, or settle received ones."""
        quietly(self._step)

    def settle(self) -> bool:
        """Continue until nothing is left in the queue."""
        try:
            if self._again is not None:
                self._repeat()
            else:
                self._jobs = self._jobs or self._take(10)
                if self._jobs:
                    self._ask("ack", self._jobs)
            info = self._world.engine.queues.describe(self._topic, self._queue.group)
            left = info.backlog + info.leased + info.ready + info.delayed + info.blocked
            return self._again is None and left + info.dying == 0
        except TMSError:
            return False

    def _step(self) -> None:
        random = self._world.random
        if self._again is not None:
            if random.random() < 0.1:
                self._again, self._jobs = None, []  # the worker disappears
            else:
                self._repeat()
        elif not self._jobs:
            self._jobs = self._take(random.choice((1, 2, 5)))
        else:
            chosen = [job for job in self._jobs if random.random() < 0.7]
            self._ask(random.choice(HOWS), chosen)
            if random.random() < 0.05:
                self._jobs = []

    def _take(self, limit: int) -> list[Delivered]:
        world, history = self._world, self._world.history
        began, clock_ms = history.now(), world.clock.passed_ms
        received = world.engine.queues.receive(self._topic, self._queue.group, limit)
        found = received.messages(self._queue.place[0])
        if found:
            jobs = tuple(map(_job, found))
            lease_ms = round(LEASE_S * 1_000)
            history.add(
                Taken(
                    began,
                    self._name,
                    self._queue.group,
                    jobs,
                    history.now(),
                    clock_ms,
                    lease_ms,
                    world.era,
                )
            )
        return found

    def _ask(self, how: str, jobs: Sequence[Delivered]) -> None:
        if not jobs:
            return
        if how == "made":
            self._make(jobs)
            return
        world, tokens = self._world, [job.token for job in jobs]
        began = self._note(0, how, jobs)

        def attempt() -> bool:
            result = _call(world, how, self._queue, tokens)
            late = {str(one) for text in result.fenced for one in Token.parse(text).each()}
            self._note(began, how, jobs, late)
            return True

        if how != "extend":
            self._jobs = [job for job in self._jobs if job not in jobs]
        self._again = attempt
        self._repeat()

    def _note(
        self, began: int, how: str, jobs: Sequence[Delivered], late: set[str] | None = None
    ) -> int:
        """Note a request, or its answer: `late` are the tokens that came too late; None:
        unknown."""
        history, asked = self._world.history, tuple(map(_job, jobs))
        began = began or history.now()
        done = tuple(_value(job) for job in jobs if late is not None and job.token not in late)
        fenced = tuple(_value(job) for job in jobs if late is not None and job.token in late)
        queue = self._queue.group
        history.add(Handled(began, self._name, queue, how, asked, done, fenced, history.now()))
        return began

    def _repeat(self) -> None:
        assert self._again is not None
        if self._again():
            self._again = None

    def _make(self, jobs: Sequence[Delivered]) -> None:
        """Settle the messages in one transaction with the output made of them."""
        world, history = self._world, self._world.history
        self._made += 1
        name = f"{self._name}-{self._made}"
        values = tuple(f"{name}.{number}" for number in range(len(jobs)))
        began = self._note(0, "made", jobs)
        history.add(
            Sent(history.now(), self._queue.handled, values, name, tuple(map(_value, jobs)))
        )
        history.add(Asked(history.now(), name))
        settlement = Settlement(self._queue.group, self._topic, tuple(job.token for job in jobs))

        work = making(name, self._queue.handled, values, settlements=(settlement,))

        def attempt() -> bool:
            done = commit(world, work)
            if done:
                self._note(began, "made", jobs, set())
            return done is not None

        self._jobs = [job for job in self._jobs if job not in jobs]
        self._again = attempt
        self._repeat()


def _call(world: World, how: str, queue: Work, tokens: Sequence[str]) -> TokenResult:
    queues, group, topic = world.engine.queues, queue.group, queue.topic
    match how:
        case "ack":
            return queues.ack(topic, group, tokens)
        case "nack":
            return queues.nack(topic, group, tokens)
        case "release":
            return queues.release(topic, group, tokens)
        case "extend":
            return queues.extend(topic, group, tokens)
        case _:
            return queues.reject(topic, group, tokens, "bad")


def _job(message: Delivered) -> Job:
    return Job(_value(message), Token.parse(message.token).deliveries)


def _value(message: Delivered) -> str:
    return text_of(message.value, message.headers)
