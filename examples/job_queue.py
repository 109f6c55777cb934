"""A job queue: each job goes to one worker at a time, until it is done.

    python examples/job_queue.py

A job that fails temporarily is nacked and tried again, a little later each time. A job that cannot
be done becomes a dead letter, with its cause, and is moved back when the cause is fixed. The result
of a job is published in the transaction that acknowledges it. A job therefore has one result,
however often it was begun and whichever worker died meanwhile.
"""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import tms
from tms.errors import Fenced

Render = Callable[[bytes], bytes]


def prepare(bus: tms.Bus, lease_s: float = 30) -> tms.Queue:
    """The topics, and the queue of the workers."""
    bus.create_topic("images", partitions=2)
    bus.create_topic("thumbnails")
    return bus.queue(
        "images", group="renderers", lease_s=lease_s, deliveries_max=5, backoff_first_s=0.05
    )


def work(bus: tms.Bus, queue: tms.Queue, render: Render) -> int:
    """Do jobs until none is left; returns the number of results that this worker published."""
    done = 0
    while unfinished(queue):
        for job in queue.receive(4, wait_s=0.2):
            done += do(bus, queue, job, render)
    return done


def do(bus: tms.Bus, queue: tms.Queue, job: tms.Delivered, render: Render) -> bool:
    """Do one job. True if its result was published."""
    try:
        thumbnail = render(job.value or b"")
    except ConnectionError:
        queue.nack(job)  # later, with the queue's back-off; a dead letter after five deliveries
        return False
    except ValueError as error:
        queue.reject(job, str(error))  # at once
        return False
    try:
        with bus.transaction() as tx:
            tx.send("thumbnails", thumbnail)
            tx.ack(queue, job)
    except Fenced:  # it took longer than the lease: another worker has the job, nothing was sent
        return False
    return True


def unfinished(queue: tms.Queue) -> int:
    """The number of jobs that are neither done nor dead letters."""
    now = queue.describe()
    return now.backlog + now.leased + now.ready + now.delayed + now.blocked + now.dying


def dead_letters(bus: tms.Bus, queue: tms.Queue) -> list[tms.Message]:
    """The jobs that failed for good."""
    return list(bus.consumer(str(queue.describe().dead_letter), stop_at_end=True))


class Renderer:
    """Renders images. Now and then a connection breaks, and some images are not readable yet."""

    def __init__(self) -> None:
        self.mended = False
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self, image: bytes) -> bytes:
        with self._lock:
            self._calls += 1
            unlucky = self._calls % 5 == 0
        if unlucky:
            raise ConnectionError("the connection to the image store broke")
        if image.endswith(b".tiff") and not self.mended:
            raise ValueError("nothing here can read TIFF")
        return b"thumbnail of " + image


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tms.open(Path(name) / "data") as bus:
        queue, render = prepare(bus), Renderer()
        kinds = [b"png", b"jpeg", b"tiff"]
        bus.publish_many("images", [b"%d.%s" % (n, kinds[n % 3]) for n in range(30)])
        workers = [threading.Thread(target=work, args=(bus, queue, render)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        letters = dead_letters(bus, queue)
        cause = letters[0].headers["tms-dead-cause"].decode()
        print(f"{len(letters)} messages are dead: {cause}")
        render.mended = True
        print(f"{queue.redrive()} messages moved back")
        work(bus, queue, render)
        results = list(bus.consumer("thumbnails", stop_at_end=True))
        print(f"{len(results)} messages, {len({one.value for one in results})} different results")


if __name__ == "__main__":
    main()
