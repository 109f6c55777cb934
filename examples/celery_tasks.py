"""Tasks of Celery that publish, in the forked workers of its prefork pool.

    tms serve --data data
    celery --workdir examples -A celery_tasks worker
    python examples/celery_tasks.py

This module makes the bus once, when it is imported, and every worker uses the bus that it inherits:
TMS makes new connections and sequence numbers in each. `gunicorn --preload` works in this way, too.

Celery hands a task out again when its worker dies (`task_acks_late`), so it may run twice.
`expect="nothing"` stores only the first message with the key of a task: each result exists once.

Celery's broker here is a directory; in production it is RabbitMQ or Redis.
"""

import os
import signal
import time
from pathlib import Path

from celery import Celery

import tms
from tms.errors import WrongLastId

TASKS, UNLUCKY, WAIT_S = 40, 13, 120
FOLDER = Path(os.environ.get("CELERY_FOLDER", "celery-broker")).absolute()
FOLDER.mkdir(exist_ok=True)

app = Celery("celery_tasks", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(FOLDER),
        "data_folder_out": str(FOLDER),
        "control_folder": str(FOLDER),
        "polling_interval": 0.1,
    },
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_lost_wait=0.5,  # seconds until the task of a worker that died is handed out again
)
bus = tms.connect(os.environ.get("TMS_URL", "http://localhost:7070"))


@app.task(name="square")
def square(number: int, dies: bool = False) -> None:
    """Publish a square. A worker that dies does so after its message is stored, before its ack."""
    try:
        bus.publish("squares", b"%d" % number**2, key=b"%d" % number, expect="nothing")
    except WrongLastId:
        return  # an earlier attempt has done it
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    bus.create_topic("squares", partitions=4)
    for number in range(TASKS):
        square.delay(number, dies=number == UNLUCKY)
    until_s, squares = time.monotonic() + WAIT_S, list[int]()
    while len(squares) < TASKS and time.monotonic() < until_s:
        time.sleep(0.1)
        squares = [message.json(int) for message in bus.consumer("squares", stop_at_end=True)]
    assert sorted(squares) == [number**2 for number in range(TASKS)], squares
    print(f"{len(squares)} squares, each once; a worker died behind the one of {UNLUCKY}")


if __name__ == "__main__":
    main()
