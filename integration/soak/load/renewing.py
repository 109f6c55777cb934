"""Publishes a key with `expect="nothing"` in a topic whose messages expire after a second or two:
that is stored if nothing of the key can be read, and refused if something can."""

import time

import tms
from integration.soak.load.worker import Worker
from tms.errors import TMSError, WrongLastId

EXPIRED_S = 5.0  # after the retention: a message is gone by then, on a machine that is busy, too


def work(worker: Worker) -> None:
    """Publish until told to stop. Nobody else writes to the topic, and its readings say nothing."""
    [topic] = worker.topics(expiring=True)
    retention_s = float(worker.job.topics[topic]["settings"]["retention"].removesuffix("s"))
    key, stored_s = worker.name.encode(), 0.0
    with worker.connect() as bus:
        while not worker.stopped:
            before = _readable(bus, topic, key)
            tried_s = time.monotonic()
            stored = _stored(bus, topic, key)
            if stored and before & _readable(bus, topic, key):
                worker.ledger.wrong(f"{key!r} was stored although nothing of it was expected")
            if stored is False and tried_s - stored_s > retention_s + EXPIRED_S:
                worker.ledger.wrong(f"{key!r} was refused although all of it has expired")
            if stored is not False:  # or nobody knows
                stored_s = time.monotonic()
            time.sleep(worker.random.choice((0.1, retention_s, retention_s + EXPIRED_S + 1)))


def _stored(bus: tms.Bus, topic: str, key: bytes) -> bool | None:
    """None if nobody knows."""
    try:
        bus.publish(topic, b"renewed", key, expect="nothing")
    except WrongLastId:
        return False
    except TMSError as error:
        if not error.retriable:
            raise
        return None
    return True


def _readable(bus: tms.Bus, topic: str, key: bytes) -> set[str]:
    """The ids of the messages of the key that can be read; none if the service is away."""
    try:
        with bus.consumer(topic, start="earliest", stop_at_end=True) as consumer:
            return {str(one.id) for one in consumer if one.key == key}
    except TMSError as error:
        if not error.retriable:
            raise
        return set()
