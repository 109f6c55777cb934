"""Programs that fork while they use a service; the exit code of each is 0 if all went well.

`forking_embedded` runs them.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NoReturn

import uvloop

import tms
import tms.aio
from tms.errors import Closed

LIMIT_S = 120  # of a whole program, and of each child
TIMEOUT_S = 30.0
WORKERS = 4
FORKS, FORKS_LONG = 5, 15  # of a program that forks again and again


class Children:
    """Forked children; all of them must end well."""

    def __init__(self) -> None:
        self._pids: list[int] = []

    def fork(self, work: Callable[[], object]) -> int:
        """Fork a child that does this and exits as a program that ends by itself."""
        pid = os.fork()
        if not pid:
            self._pids = []
            signal.alarm(LIMIT_S)
            try:
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            _exit_tidily()
        self._pids.append(pid)
        return pid

    def join(self) -> None:
        for pid in self._pids:
            assert os.waitpid(pid, 0)[1] == 0, "a child failed, or did not end in time"
        self._pids = []


def _exit_tidily() -> NoReturn:
    """Collect all garbage first: finalizers must not harm the parent either."""
    gc.collect()
    sys.exit(0)


class Gate:
    """Lets processes wait for each other."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()

    def open(self) -> None:
        os.write(self._in, b"x")

    def wait(self) -> None:
        assert os.read(self._out, 1) == b"x"


@contextlib.contextmanager
def connected(url: str) -> Iterator[tms.Bus]:
    """A bus with connections, numberings and every other used state."""
    with tms.connect(url, timeout_s=TIMEOUT_S) as bus:
        bus.create_topic("t", durability="written")
        for value in (b"warm", b"warmer"):
            bus.publish("t", value)
        bus.publish_many("t", [b"hot"])
        yield bus


def stored(bus: tms.Bus) -> list[str]:
    """All values except those of `connected`."""
    values = [(m.value or b"").decode() for m in bus.consumer("t", stop_at_end=True)]
    assert values[:3] == ["warm", "warmer", "hot"]
    return values[3:]


def named(name: str, times: int) -> list[str]:
    return [f"{name}-{number}" for number in range(times)]


def expect_stored(bus: tms.Bus, names: Sequence[str], times: int) -> None:
    """Check that every process's messages are stored, once, in order."""
    found = stored(bus)
    assert Counter(found) == Counter(value for name in names for value in named(name, times))
    for name in names:
        assert [v for v in found if v.startswith(f"{name}-")] == named(name, times)


def closed(use: Callable[[], object]) -> None:
    """Check that a use raises an error that names the parent."""
    try:
        use()
    except Closed as error:
        assert "forked" in error.message, error.message
    else:
        raise AssertionError("it was not refused")


_shared: tms.Bus


def _publish(value: str) -> str:
    return str(_shared.publish("t", value.encode()))


def pool(url: str) -> None:
    """Fork by `multiprocessing.Pool(4)`: acknowledged messages are stored."""
    global _shared
    with connected(url) as _shared:
        values = named("task", 200)
        with multiprocessing.get_context("fork").Pool(WORKERS) as workers:
            ids = workers.map(_publish, values, chunksize=5)
        by_id = {str(m.id): m.value for m in _shared.consumer("t", stop_at_end=True)}
        assert [by_id[id] for id in ids] == [value.encode() for value in values]
        assert len(by_id) == len(values) + 3


def preload(url: str) -> None:
    """Fork as `gunicorn --preload`: the application is loaded once, then its workers are forked."""
    with connected(url) as bus:
        producer = bus.producer("t")
        producer.send(b"warmest")
        producer.flush()
        children = Children()

        def work(name: str) -> None:
            for value in named(f"{name}.publish", 20):
                bus.publish("t", value.encode())
            bus.publish_many("t", [value.encode() for value in named(f"{name}.many", 20)])
            for value in named(f"{name}.producer", 20):
                producer.send(value.encode())
            producer.flush()
            with bus.transaction() as tx:
                for value in named(f"{name}.tx", 20):
                    tx.send("t", value.encode())
            bus.close()

        workers = [f"worker{number}" for number in range(WORKERS)]
        for name in workers:
            children.fork(partial(work, name))
        work_here = ["publish", "many", "producer", "tx"]
        children.join()
        bus.publish("t", b"last")
        found = stored(bus)
        assert (found[0], found[-1]) == ("warmest", "last")
        wanted = [v for w in workers for how in work_here for v in named(f"{w}.{how}", 20)]
        assert Counter(found[1:-1]) == Counter(wanted)


def buffered(url: str) -> None:
    """Messages that wait in a producer are sent by the parent only."""
    with connected(url) as bus:
        producer = bus.producer("t", linger_ms=60_000)
        for value in named("parent", 10):
            producer.send(value.encode())
        children, done = Children(), Gate()

        def work() -> None:
            producer.flush()
            assert stored(bus) == []
            for value in named("child", 10):
                producer.send(value.encode())
            producer.close()
            assert stored(bus) == named("child", 10)
            done.open()

        children.fork(work)
        done.wait()
        producer.flush()
        children.join()
        expect_stored(bus, ["parent", "child"], 10)


def busy(forks: int, url: str) -> None:
    """Fork again and again while other threads hold any locks."""
    with connected(url) as bus:
        producer, ending = bus.producer("t", batch_bytes=200), threading.Event()
        sent: Counter[str] = Counter()

        def publish(name: str) -> None:
            for number in count():
                if ending.is_set():
                    break
                bus.publish("t", f"{name}-{number}".encode())
                sent[name] = number + 1

        def send() -> None:
            for number in count():
                if ending.is_set():
                    break
                producer.send(f"sent-{number}".encode())
                sent["sent"] = number + 1

        works = [partial(publish, "a"), partial(publish, "b"), partial(publish, "c"), send]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()

        def work(name: str) -> None:
            for value in named(name, 5):
                bus.publish("t", value.encode())
                producer.send(f"{value}.sent".encode())
            producer.flush()
            bus.close()

        children = Children()
        for number in range(forks):
            children.fork(partial(work, f"child{number}"))
            children.join()
        ending.set()
        for thread in threads:
            thread.join()
        producer.flush()
        wanted = [value for name, times in sent.items() for value in named(name, times)]
        own = [value for number in range(forks) for value in named(f"child{number}", 5)]
        wanted += own + [f"{value}.sent" for value in own]
        assert Counter(stored(bus)) == Counter(wanted)


def thread(url: str) -> None:
    """Fork from a thread that is not the main one."""
    with connected(url) as bus:
        children = Children()

        def work() -> None:
            for value in named("child", 20):
                bus.publish("t", value.encode())

        forking = threading.Thread(target=lambda: children.fork(work))
        forking.start()
        for value in named("parent", 20):
            bus.publish("t", value.encode())
        forking.join()
        children.join()
        expect_stored(bus, ["parent", "child"], 20)


def consumer(url: str) -> None:
    """Both processes go on reading at their positions, each over a connection of its own."""
    with connected(url) as bus:
        bus.publish_many("t", [value.encode() for value in named("m", 300)])
        reading = bus.consumer("t", bytes_max=1_000, stop_at_end=True)
        messages = iter(reading)
        list(islice(messages, 50))
        children = Children()

        def read_on() -> None:
            assert [m.offset for m in messages] == list(range(50, 303))

        def work() -> None:
            assert _connections() == 0, "the child keeps connections of its parent open"
            read_on()
            reading.close()
            bus.close()

        children.fork(work)
        children.join()
        read_on()


def _connections() -> int:
    """The number of sockets of this process."""
    links = (entry for entry in Path("/proc/self/fd").iterdir())
    found = 0
    for link in links:
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(link).startswith("socket:")
    return found


def member(url: str) -> None:
    """The child of a member of a group is another member."""
    with tms.connect(url, timeout_s=TIMEOUT_S) as bus:
        bus.create_topic("parts", partitions=4, durability="written")
        for number in range(200):
            bus.publish("parts", b"%d" % number, partition=number % 4)
        children, out = Children(), os.pipe()
        member = bus.consumer(
            "parts", group=tms.Group("g", delivery="at-least-once"), stop_at_end=True
        )
        messages = iter(member)
        mine = [(m.partition, m.offset) for m in islice(messages, 5)]
        in_hand = mine[-1]
        name = member._reader.member.name  # type: ignore[attr-defined]

        def handle_all() -> list[tuple[int, int]]:
            return [(m.partition, m.offset) for m in messages]

        def work() -> None:
            handled = handle_all()
            assert member._reader.member.name != name  # type: ignore[attr-defined]
            os.write(out[1], repr(handled).encode())
            bus.close()

        children.fork(work)
        mine += handle_all()
        children.join()
        os.close(out[1])
        with open(out[0]) as pipe:
            theirs: list[tuple[int, int]] = eval(pipe.read())
        handled = Counter([*mine, *theirs])
        assert len(handled) == 200
        assert all(times == 1 or one == in_hand for one, times in handled.items()), handled


def queue(url: str) -> None:
    """Messages that were leased ahead are handed out by the parent alone."""
    with connected(url) as bus:
        queue = bus.queue("t", group="workers", lease_s=600)
        bus.publish_many("t", [value.encode() for value in named("job", 47)])
        messages = iter(queue)
        mine = [next(messages)]
        children, out = Children(), os.pipe()

        def take(some: int) -> list[int]:
            taken = []
            for message in islice(messages, some):
                queue.ack(message)
                taken.append(message.offset)
            return taken

        def work() -> None:
            os.write(out[1], repr(take(16)).encode())
            bus.close()

        children.fork(work)
        children.join()
        theirs: list[int] = eval(os.read(out[0], 10_000))
        ours = [message.offset for message in mine] + take(15)
        assert len(theirs) == 16 and len(ours) == 16
        assert not set(ours) & set(theirs), (ours, theirs)


def transaction(url: str) -> None:
    """A transaction ends in the process that began it."""
    with connected(url) as bus:
        children = Children()
        with bus.transaction() as tx:
            _ = tx.id
            tx.send("t", b"parent-0")

            def work() -> None:
                closed(lambda: tx.commit())
                closed(lambda: tx.__exit__(None, None, None))
                tx.__exit__(SystemExit, SystemExit(), None)
                tx.abort()
                with bus.transaction() as own:
                    own.send("t", b"child-0")

            children.fork(work)
            children.join()
        expect_stored(bus, ["parent", "child"], 1)


def view(url: str) -> None:
    """A view is kept by the process that made it."""
    with connected(url) as bus:
        bus.publish("t", b"1", key=b"k")
        view = bus.view("t")
        children = Children()

        def work() -> None:
            closed(lambda: view[b"k"])
            closed(lambda: dict(view))
            closed(view.refresh)
            view.close()
            with bus.view("t") as own:
                assert dict(own) == {b"k": b"1"}
            bus.close()

        children.fork(work)
        children.join()
        bus.publish("t", b"2", key=b"k")
        view.refresh()
        assert dict(view) == {b"k": b"2"}


def _async(loop: str, url: str) -> None:
    """An asyncio bus, used on a loop in a thread, goes on in a child on a loop of its own."""
    make = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    bus = tms.aio.connect(url, timeout_s=TIMEOUT_S)
    producer = bus.producer("t", linger_ms=60_000)
    member = bus.consumer("t", group=tms.Group("g", delivery="at-least-once"), stop_at_end=True)
    begun, forked = threading.Event(), threading.Event()

    async def parent() -> None:
        for value in named("parent.publish", 10):
            await bus.publish("t", value.encode())
        for value in named("parent.producer", 10):
            await producer.send(value.encode())
        begun.set()
        await asyncio.to_thread(forked.wait)
        await asyncio.gather(*(bus.publish("t", b"later-%d" % n) for n in range(10)))
        await producer.close()

    async def child() -> None:
        for value in named("child.publish", 10):
            await bus.publish("t", value.encode())
        for value in named("child.producer", 10):
            await producer.send(value.encode())
        await producer.flush()
        found = [m.value async for m in bus.consumer("t", stop_at_end=True)]
        assert [m.value async for m in member] == found
        await bus.close()

    def run(work: Callable[[], object]) -> None:
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(work())  # type: ignore[arg-type]

    with connected(url) as sync:
        thread = threading.Thread(target=run, args=(parent,))
        thread.start()
        assert begun.wait(TIMEOUT_S)
        children = Children()
        children.fork(lambda: run(child))
        children.join()
        forked.set()
        thread.join()
        hows = [f"{who}.{how}" for who in ("parent", "child") for how in ("publish", "producer")]
        found = [value for value in stored(sync) if not value.startswith("later-")]
        assert Counter(found) == Counter(v for how in hows for v in named(how, 10))
        assert len(stored(sync)) == len(found) + 10


PROGRAMS: Mapping[str, Callable[[str], None]] = {
    "pool": pool,
    "preload": preload,
    "buffered": buffered,
    "busy": partial(busy, FORKS),
    "thread": thread,
    "consumer": consumer,
    "member": member,
    "queue": queue,
    "transaction": transaction,
    "view": view,
    "asyncio": partial(_async, "asyncio"),
    "uvloop": partial(_async, "uvloop"),
}
PROGRAMS_LONG = {"busy_long": partial(busy, FORKS_LONG)}
