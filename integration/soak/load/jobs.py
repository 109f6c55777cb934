"""One job in a process of its own."""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from integration.soak.load import (
    asynchronous,
    consuming,
    delaying,
    embedded,
    foreign,
    forking,
    grouping,
    publishing,
    queueing,
    removing,
    renewing,
    streaming,
    transacting,
)
from integration.soak.load.worker import Job, Worker

KINDS: dict[str, Callable[[Worker], None]] = {
    "publish": publishing.work,
    "publish-async": asynchronous.work,
    "fork": forking.work,
    "commit": transacting.work,
    "consume": consuming.work,
    "group": grouping.work,
    "queue": queueing.work,
    "delay": delaying.work,
    "remove": removing.work,
    "foreign": foreign.work,
    "renew": renewing.work,
    "embedded": embedded.work,
    "stream": streaming.work,
}


def logged(log: Path, work: Callable[[object], object], task: object) -> None:
    """Run work with its output in a file, and its stack traces on SIGUSR1 and after a crash."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(fd, sys.stdout.fileno())
    os.dup2(fd, sys.stderr.fileno())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    work(task)


def run(job: Job) -> None:
    """Run a job. An unexpected error is noted in the ledger, and fails the process."""
    worker = Worker(job)
    try:
        KINDS[job.kind](worker)
    except BaseException as error:
        worker.ledger.wrong(f"{type(error).__name__}: {error}")
        raise
