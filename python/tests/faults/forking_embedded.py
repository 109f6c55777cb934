"""Programs that fork while they have a data directory open, and the runner of all programs that
fork; the exit code of a program is 0 if all went well.

    python -m tests.faults.forking_embedded PROGRAM URL_OR_DIRECTORY     one program
    python -m tests.faults.forking_embedded     a child for each line `PROGRAM URL_OR_DIRECTORY
                                                ERRORS` that it reads

A child writes its errors to the file ERRORS and ends as a program does; then its exit code is
printed. The runner has imported what programs need, opened nothing and started no thread, so a
child begins as a program does, without the seconds that the start of an interpreter takes.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

import tms
import tms.aio
from tests.faults import forking
from tests.faults.forking import FORKS, FORKS_LONG, LIMIT_S, Children, Gate, closed
from tms.block import encode
from tms.errors import AlreadyRunning, ConfigError


def embedded(directory: str) -> None:
    """In a child every use is refused, and nothing happens to the parent."""
    with tms.open(directory) as bus:
        bus.create_topic("t", durability="written")
        producer, queue, table = bus.producer("t"), bus.queue("t", group="g"), bus.table("x")
        producer.send(b"0")
        producer.flush()
        group, view = bus.consumer("t", group="g2"), bus.view("t")
        transaction = bus.transaction()
        transaction.send("t", b"1")
        messages = iter(bus.consumer("t"))
        next(messages)
        asyncio_bus = tms.aio.AsyncBus(bus, lambda: None)  # type: ignore[arg-type,return-value]
        children = Children()

        def send() -> None:
            producer.send(b"child")
            producer.flush()

        def work() -> None:
            uses: list[Callable[[], object]] = [
                lambda: bus.publish("t", b"child"),
                lambda: bus.publish_many("t", [b"child"]),
                lambda: bus.publish_later("t", b"child", delay=1),
                lambda: bus.fetch("t"),
                lambda: bus.describe_topic("t"),
                lambda: list(bus.list_topics()),
                lambda: bus.consumer("t"),
                lambda: bus.producer("t"),
                lambda: next(messages),
                lambda: next(iter(group)),
                lambda: queue.receive(),
                lambda: len(view),
                lambda: table.get(b"k"),
                lambda: transaction.commit(),
                lambda: asyncio.run(asyncio_bus.describe_topic("t")),
                send,
            ]
            for use in uses:
                closed(use)
            try:
                tms.open(directory)
            except (ConfigError, AlreadyRunning):
                pass
            else:
                raise AssertionError("a child opened the directory of its parent")
            producer.close()
            bus.close()

        children.fork(work)
        children.join()
        transaction.commit()
        bus.publish("t", b"2")
    with tms.open(directory) as bus:
        values = [m.value for m in bus.consumer("t", stop_at_end=True)]
        assert values == [b"0", b"1", b"2"]


def lives_on(directory: str) -> None:
    """The lock is free once its owner has closed, though a child and a program it began live on."""
    children, end = Children(), Gate()
    bus = tms.open(directory)
    children.fork(end.wait)
    program = subprocess.Popen(["sleep", str(LIMIT_S)], close_fds=False)
    try:
        with contextlib.suppress(AlreadyRunning):
            _open_elsewhere(directory)
            raise AssertionError("two processes have the directory open")
        bus.close()
        _open_elsewhere(directory)
    finally:
        program.kill()
        program.wait()
        end.open()
    children.join()


def _open_elsewhere(directory: str) -> None:
    code = "import sys, tms; tms.open(sys.argv[1]).close()"
    done = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True)
    if "AlreadyRunning" in done.stderr:
        raise AlreadyRunning(done.stderr)
    assert done.returncode == 0, done.stderr


def dies(directory: str) -> None:
    """The lock is free once its owner has died, though its child lives on."""
    ready, end = Gate(), Gate()
    owner = os.fork()
    if not owner:
        bus = tms.open(directory)
        bus.create_topic("t", durability="written")
        bus.publish("t", b"0")
        if not os.fork():
            ready.open()  # not by the owner: a new child has the lock until `fork` returns in it
            end.wait()  # until the other end of the pipe is written to, or gone
            os._exit(0)
        time.sleep(LIMIT_S)
    ready.wait()
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    with tms.open(directory) as bus:
        assert [m.value for m in bus.consumer("t", stop_at_end=True)] == [b"0"]
        bus.publish("t", b"1")
    end.open()


def writing(forks: int, directory: str) -> None:
    """Fork again and again while the engine writes and LevelDB compacts: a child that ends takes
    nothing along, and none hangs."""
    with tms.open(directory) as bus:
        bus.create_topic("t", partitions=2, durability="written")
        bus.create_topic("small", durability="written")
        ending, written = threading.Event(), [0, 0]

        def write(partition: int) -> None:
            value = os.urandom(3_000)
            while not ending.is_set():
                bus.publish("t", value, partition=partition)
                written[partition] += 1

        threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        children = Children()

        def work() -> None:
            closed(lambda: bus.publish("small", b"child"))
            bus.close()

        for _ in range(forks):
            bus.publish("small", b"parent")
            children.fork(work)
            children.join()
        ending.set()
        for thread in threads:
            thread.join()
    with tms.open(directory) as bus:
        assert sum(1 for _ in bus.consumer("small", stop_at_end=True)) == forks
        for partition, times in enumerate(written):
            found = bus.consumer("t", partitions=[partition], stop_at_end=True)
            assert sum(1 for _ in found) == times


def own(directory: str) -> None:
    """LevelDB does not work after a fork: opening raises an error, instead of hanging later."""
    tms.open(directory).close()
    children = Children()

    def work() -> None:
        place = Path(directory) / "of-the-child"
        try:
            tms.open(place)
        except ConfigError as error:
            assert "forked" in error.message
        else:
            raise AssertionError("it was opened")
        assert not place.exists()

    children.fork(work)
    children.join()


def first(directory: str) -> None:
    """A program that forks before it opens anything may open in every process."""
    children = Children()
    for number in range(2):

        def work(number: int = number) -> None:
            with tms.open(Path(directory) / str(number)) as bus:
                bus.create_topic("t", durability="written")
                bus.publish("t", b"x")

        children.fork(work)
    children.join()
    with tms.open(Path(directory) / "1") as bus:
        assert len(list(bus.consumer("t", stop_at_end=True))) == 1


PROGRAMS: Mapping[str, Callable[[str], None]] = {
    "embedded": embedded,
    "lives_on": lives_on,
    "dies": dies,
    "writing": partial(writing, FORKS),
    "own": own,
    "first": first,
}
PROGRAMS_LONG = {"writing_long": partial(writing, FORKS_LONG)}


def main(program: str, where: str) -> None:
    """Run one program, of either file."""
    signal.alarm(LIMIT_S)
    every = {**forking.PROGRAMS, **forking.PROGRAMS_LONG, **PROGRAMS, **PROGRAMS_LONG}
    every[program](where)


def serve() -> None:
    """Fork a child for every line of standard input, one after the other."""
    for module in ("tms.engine.engine", "tms.store.leveldb"):
        import_module(module)
    encode([b""])  # pyarrow loads the rest of itself with the first block
    for line in sys.stdin:
        program, where, errors = line.split()
        child = os.fork()
        if not child:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
            main(program, where)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else serve()
