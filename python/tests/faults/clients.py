"""Clients of a service whose processes are killed: what they saw is checked as a history.

Writers commit transactions over two topics, a group makes a message of each message, readers read,
all through HTTP and with patience; meanwhile the test kills what it likes. See `sim.rules.checker`
for what must hold.
"""

import socket
import threading
from collections.abc import Callable
from random import Random

import tms
from sim.history import Asked, Crashed, Done, Ended, Final, History, Place, Read, Sent
from sim.rules.checker import check
from tms.client.client import Bus
from tms.errors import Conflict, TMSError
from tms.model.position import Position

A, B, MADE = ("a", 0), ("b", 0), ("made", 0)
PLACES: tuple[Place, ...] = (A, B, MADE)
PATIENCE_S = 60.0
END_S = 90.0  # in which everybody must have come to an end


class Run:
    """What the clients of one run share."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.history = History()
        self.stop = threading.Event()

    def bus(self) -> Bus:
        """A bus with patience for a service that starts again."""
        return tms.connect(self.url, timeout_s=PATIENCE_S)


def write(run: Run, name: str) -> None:
    """Commit transactions over two topics; every answer comes in the end."""
    history, number = run.history, 0
    with run.bus() as bus:
        while not run.stop.is_set():
            number += 1
            tx_name = f"{name}-{number}"
            for place in (A, B):
                values = tuple(f"{tx_name}.{place[0]}.{n}" for n in range(2))
                history.add(Sent(history.now(), place, values, tx_name))
            history.add(Asked(history.now(), tx_name))
            tx = bus.transaction(durability="synced")
            for place in (A, B):
                for n in range(2):
                    tx.send(place[0], f"{tx_name}.{place[0]}.{n}".encode())
            try:
                tx.commit()
            except TMSError:
                continue  # its outcome stays unknown
            history.add(Ended(history.now(), tx_name, committed=True))


def read(run: Run, name: str, place: Place) -> None:
    """Read to the end over and over; now and then from the beginning."""
    history, random, turn, after = run.history, Random(name), 0, ""
    with run.bus() as bus:
        while not run.stop.is_set():
            if random.random() < 0.02:
                turn, after = turn + 1, ""
            began = history.now()
            start = Position.parse(f"after:{after}") if after else Position.earliest()
            page = bus.fetch(place[0], {0: start})
            seen = tuple((str(m.id), (m.value or b"").decode()) for m in page.messages())
            history.add(
                Read(began, name, turn, place, True, after, seen, history.now(), held_by="?")
            )
            after = seen[-1][0] if seen else after


def transform(run: Run, name: str) -> None:
    """Make a message of each message of `a`, in a group with others."""
    history, number = run.history, 0
    with run.bus() as bus:
        while not run.stop.is_set():
            consumer = bus.consumer("a", group="g", stop_at_end=True, bytes_max=2_000)
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
                    tx.send("made", value.encode())
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


def finish(run: Run) -> None:
    """What is there at the end."""
    history = run.history
    with run.bus() as bus:
        for place in PLACES:
            found = bus.consumer(place[0], stop_at_end=True)
            messages = tuple((str(m.id), (m.value or b"").decode()) for m in found)
            history.add(Final(history.now(), place, messages))
        for position in bus.positions("a", group="g").values():
            history.add(Done(history.now(), "g", A, str(position.id), "made"))


class Clients:
    """All of them, each in a thread; the service at `url` has to be there when they start."""

    def __init__(self, url: str) -> None:
        self.run = Run(url)
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Make the topics, and begin."""
        with self.run.bus() as bus:
            for topic, _ in PLACES:
                bus.create_topic(topic)
        for number in range(2):
            self._go(write, f"w{number}")
        for number in range(2):
            self._go(transform, f"t{number}")
        for place in PLACES:
            self._go(read, f"r-{place[0]}", place)

    def killed(self) -> None:
        """Something that stores was killed."""
        self.run.history.add(Crashed(self.run.history.now(), power=False))

    def check(self) -> int:
        """End, look at everything and check it; how many transactions were committed."""
        self.run.stop.set()
        for thread in self._threads:
            thread.join(END_S)
        assert not self._failures, self._failures
        assert not any(thread.is_alive() for thread in self._threads)
        finish(self.run)
        assert check(self.run.history) == []
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
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
