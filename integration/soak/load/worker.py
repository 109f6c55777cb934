"""Shared parts of all jobs: their seed, their ledger, and the meaning of an error."""

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import tms
from integration.soak.content import Maker
from integration.soak.ledger import DONE, REFUSED, UNKNOWN, Ledger, Placed
from tms.errors import Fenced, TMSError, TransactionConflict, WrongLastId

T = TypeVar("T")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a process."""

    kind: str
    name: str
    seed: str
    url: str
    directory: str
    stop: str
    topics: dict[str, dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


class Worker:
    """A running job."""

    def __init__(self, job: Job, name: str | None = None) -> None:
        self.job = job
        self.name = name or job.name
        self.random = Random(f"{job.seed}/{self.name}")
        self.ledger = Ledger(Path(job.directory) / f"{self.name}.ledger", self.name)
        self.maker = Maker(self.name, self.random, job.options.get("bytes_max", 20_000))
        self.left = int(job.options.get("messages", 20_000))
        self.bytes_left = int(job.options.get("bytes", 64 << 20))

    def branch(self, name: str) -> "Worker":
        """Another writer in the same job: a task, thread or child, with a ledger of its own."""
        return Worker(self.job, f"{self.name}.{name}")

    @property
    def over(self) -> bool:
        """True if the stop file exists, or the work is done."""
        return self.left <= 0 or self.bytes_left <= 0 or self.stopped

    @property
    def stopped(self) -> bool:
        """True if the stop file exists."""
        return os.path.exists(self.job.stop)

    @contextmanager
    def ending(self, consumer: tms.Consumer) -> Iterator[None]:
        """Close a consumer, which may wait for messages, when the process is told to stop."""
        left = threading.Event()

        def watch() -> None:
            while not left.wait(0.1):
                if self.stopped:
                    consumer.close()
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join()

    def connect(self) -> tms.Bus:
        """A bus connected to the service."""
        return tms.connect(self.job.url, timeout_s=TIMEOUT_S)

    def topic(self, **wanted: object) -> str:
        """One of the job's topics that have these settings."""
        return self.random.choice(self.topics(**wanted))

    def topics(self, **wanted: object) -> list[str]:
        """The job's topics that have these settings."""
        return [
            name
            for name, of in self.job.topics.items()
            if all(of.get(field) == value for field, value in wanted.items())
        ]

    def place(self, topic: str, key: bytes | None) -> int | None:
        """A partition, or None: then the key decides, or turns. A key always has the same
        partition."""
        if key is not None or self.random.random() < 0.5:
            return None
        return self.random.randrange(int(self.job.topics[topic]["partitions"]))

    def key(self, topic: str) -> bytes | None:
        """A key for a topic, or None, as the plan says."""
        keys = int(self.job.topics[topic].get("keys", 0))
        if not keys or self.random.random() < self.job.topics[topic].get("keyless", 0.3):
            return None
        return b"k%d" % self.random.randrange(keys)

    def spend(self, messages: Sequence[Placed]) -> None:
        """Count published messages."""
        self.left -= len(messages)
        self.bytes_left -= sum(len(one.value or b"") for _, _, one in messages)

    def attempt(
        self,
        kind: str,
        messages: Sequence[Placed],
        call: Callable[[], T],
        *,
        ids: Callable[[T], Sequence[object] | None] = lambda _: None,
        refusals: tuple[type[TMSError], ...] = (),
        **fields: Any,
    ) -> T | None:
        """Run an operation, with its outcome in the ledger. `refusals` are expected errors after
        which nothing was done."""
        op = self.ledger.begin(kind, messages, **fields)
        self.spend(messages)
        try:
            answer = call()
        except BaseException as error:
            self.failed(op, error, refusals)
            return None
        self.done(op, ids(answer))
        return answer

    def done(self, op: str, ids: Sequence[object] | None = None, **fields: Any) -> None:
        """Note that the operation was acknowledged."""
        told = None if ids is None or None in ids else [str(id) for id in ids]
        self.ledger.end(op, DONE, told, **fields)

    def failed(
        self, op: str, error: BaseException, refusals: tuple[type[TMSError], ...] = ()
    ) -> None:
        """Note that the operation failed. Unexpected errors of TMS are noted as wrong; other errors
        are raised."""
        if isinstance(error, refusals):
            self.ledger.end(op, REFUSED, error=type(error).__name__)
        elif isinstance(error, TMSError) and error.retriable:
            self.ledger.end(op, UNKNOWN, error=type(error).__name__)
        elif isinstance(error, TMSError):
            self.ledger.end(op, UNKNOWN, error=type(error).__name__)
            where = "".join(traceback.format_tb(error.__traceback__)[-1:]).strip()
            self.ledger.wrong(f"{op} raised {type(error).__name__}: {error} ({where})")
        else:
            self.ledger.end(op, UNKNOWN, error=type(error).__name__)
            raise error


TRANSACTION_REFUSALS = (WrongLastId, TransactionConflict, Fenced)
