"""Publishes a key with `expect="nothing"` in a topic whose messages expire after a second or two:
the publish is stored if no message of the key can be read, and refused otherwise."""

import time

import tms
from integration.soak.load.worker import Worker
from tms.errors import TMSError, WrongLastId

EXPIRED_S = 5.0  # after the retention, also on a busy machine, a message is gone


def work(worker: Worker) -> None:
    """Publish until the stop. No other job writes to the topic, and the checker ignores its
    readings."""
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
            if stored is not False:  # or the outcome is unknown
                stored_s = time.monotonic()
            time.sleep(worker.random.choice((0.1, retention_s, retention_s + EXPIRED_S + 1)))


def _stored(bus: tms.Bus, topic: str, key: bytes) -> bool | None:
    """True if the publish was stored; None if that is unknown."""
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
    """The ids of the messages of the key that can be read; empty if the service is down."""
    try:
        with bus.consumer(topic, start="earliest", stop_at_end=True) as consumer:
            return {str(one.id) for one in consumer if one.key == key}
    except TMSError as error:
        if not error.retriable:
            raise
        return set()
