"""Real clients of a real service that is killed: what they saw is checked as a history.

Writers commit transactions over two topics, a group makes a message of each message, readers read;
the service is killed (SIGKILL) in the middle and started again on the same port, and everybody goes
on. See `sim.checker` for what must hold.
"""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import tms
from sim.checker import check
from sim.history import Asked, Crashed, Done, Ended, Final, History, Place, Read, Sent
from tests.faults.service import Service
from tms.client.client import Bus
from tms.errors import Conflict, TMSError
from tms.model.position import Position

KILLS = 3
SECONDS = 7.0
A, B, MADE = ("a", 0), ("b", 0), ("made", 0)
PLACES: tuple[Place, ...] = (A, B, MADE)


class Run:
    """What the clients of one run share."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.history = History()
        self.stop = threading.Event()

    def bus(self) -> Bus:
        """A bus with patience for a service that starts again."""
        return tms.connect(self.url, timeout_s=60)


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
            consumer = bus.consumer("a", group="g", stop_at_end=True, fetch_bytes=2_000)
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
                tx.acknowledge(consumer)
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
        for position in bus.positions("g", "a").values():
            history.add(Done(history.now(), "g", A, str(position.id), "made"))


@pytest.mark.timeout(200)
def test_faults_2_and_21_clients_of_a_service_that_is_killed_see_nothing_wrong(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    run, random = Run(f"http://127.0.0.1:{port}"), Random(21)
    service = Service(tmp_path / "data", "--port", port)
    failures: list[BaseException] = []

    def go(work: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(run, *args)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    try:
        with run.bus() as bus:
            for topic, _ in PLACES:
                bus.create_topic(topic)
        threads = [go(write, "w0"), go(write, "w1"), go(transform, "t0"), go(transform, "t1")]
        threads += [go(read, f"r-{place[0]}", place) for place in PLACES]
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1) * random.uniform(0.6, 1.4))
            service.kill()
            run.history.add(Crashed(run.history.now(), power=False))
            service = Service(tmp_path / "data", "--port", port)
        time.sleep(SECONDS / (KILLS + 1))
        run.stop.set()
        for thread in threads:
            thread.join(90)
        assert not failures, failures
        assert not any(thread.is_alive() for thread in threads)
        finish(run)
    finally:
        service.kill()
    committed = [one for one in run.history.of(Ended) if one.committed]
    assert len(committed) > 50, "hardly anything happened"
    assert check(run.history) == []
