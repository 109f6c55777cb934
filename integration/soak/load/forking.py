"""A bus that is used, then shared by a fork: children and parent go on publishing with it."""

import os
import signal
import time

import tms
from integration.soak.load.publishing import batch, lone, produce
from integration.soak.load.worker import Worker

CHILD_S = 90


def work(worker: Worker) -> None:
    """Publish, fork, and publish in all processes, until the job is over."""
    with worker.connect() as bus:
        rounds = 0
        while not worker.over:
            rounds += 1
            lone(worker, bus, worker.topic(published=True))
            children = [
                _child(worker, bus, f"f{rounds}.{number}")
                for number in range(worker.random.randint(1, 3))
            ]
            produce(worker, bus, worker.topic(published=True))
            for child in children:
                _reap(worker, child)


def _child(worker: Worker, bus: tms.Bus, name: str) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        mine = worker.branch(name)
        for way in (lone, batch, produce):
            way(mine, bus, mine.topic(published=True))
        code = 0
    except BaseException as error:
        worker.ledger.wrong(f"child {name}: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _reap(worker: Worker, child: int) -> None:
    deadline = time.monotonic() + CHILD_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            worker.ledger.wrong(f"a forked child hung for {CHILD_S} s")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.02)
