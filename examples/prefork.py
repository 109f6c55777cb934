"""Workers that are forked, as Celery's prefork pool and `gunicorn --preload` do it.

    python examples/prefork.py http://localhost:7070

The program connects once, forks, and every worker goes on with the bus that it inherited: TMS makes
connections and numbers of its own in each. A worker takes jobs from a queue and publishes each
result in the transaction that acknowledges the job, so it stands there once, though a worker dies.
"""

import os
import signal
import sys

import tms

WORKERS, JOBS = 4, 40


def work(bus: tms.Bus, queue: tms.Queue, dies: bool) -> None:
    """Do jobs until none is left; a worker that dies does so with a job in its hands."""
    while (now := queue.describe()).backlog + now.leased + now.ready + now.delayed:
        for job in queue.receive(wait_s=0.2):
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            with bus.transaction() as tx:
                tx.send("squares", b"%d" % (job.json(int) ** 2))
                tx.ack(queue, job)


def fork(bus: tms.Bus, queue: tms.Queue, dies: bool) -> int:
    """A worker; its process id."""
    pid = os.fork()
    if pid:
        return pid
    failed = 1
    try:
        work(bus, queue, dies)
        failed = 0
    finally:
        os._exit(failed)  # nothing of the parent's is cleaned up here


def main(url: str) -> None:
    with tms.connect(url) as bus:
        bus.create_topic("numbers")
        bus.create_topic("squares")
        queue = bus.queue("numbers", group="workers", lease_s=1)
        bus.publish_many("numbers", [b"%d" % number for number in range(JOBS)])
        pids = [fork(bus, queue, dies=number == 0) for number in range(WORKERS)]
        killed = [os.waitpid(pid, 0)[1] == signal.SIGKILL for pid in pids]
        results = sorted(m.json(int) for m in bus.consumer("squares", stop_at_end=True))
        assert results == [number**2 for number in range(JOBS)], results
        print(f"{len(results)} messages, each once; {sum(killed)} of {WORKERS} workers died")


if __name__ == "__main__":
    main(sys.argv[1])
