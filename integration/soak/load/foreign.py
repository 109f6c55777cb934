"""Transactions of CDAP's protocol whose manager is elsewhere: each is rolled back, invalidated by
an operator, or abandoned. None commits, so no reader sees its messages."""

import http.client
import time
from urllib.parse import urlsplit

import tms
from integration.soak.load.worker import TIMEOUT_S, Worker
from tests import cdap_kit
from tms.compat.cdap.avro import PublishRequest
from tms.errors import TMSError, TransactionNotFound

AVRO = "avro/binary"
POINTERS_PER_MS = 1_000_000


def work(worker: Worker) -> None:
    """Publish until the job is over. Abandoned transactions hold readers back until the round's
    quiet."""
    [topic] = worker.topics(foreign=True)
    with worker.connect() as bus:
        while not worker.over:
            _one(worker, bus, topic)
            time.sleep(worker.random.uniform(0, 1))


def _one(worker: Worker, bus: tms.Bus, topic: str) -> None:
    made = [worker.maker.make()._replace(headers=None) for _ in range(worker.random.randint(1, 9))]
    pointer = int(time.time() * 1_000) * POINTERS_PER_MS + worker.random.randrange(POINTERS_PER_MS)
    op = worker.ledger.begin("foreign", sent := [(topic, 0, one) for one in made])
    worker.spend(sent)
    body = cdap_kit.encode_publish(PublishRequest(pointer, [one.value or b"" for one in made]))
    detail = _post(worker, topic, "publish", body)
    time.sleep(worker.random.uniform(0, 1))
    how = worker.random.random()
    rolled_back = (
        0.05 <= how < 0.5 and detail and _post(worker, topic, "rollback", detail) is not None
    )
    if how >= 0.05 and (rolled_back or invalidate(bus, pointer)):  # else its client has died
        worker.ledger.end(op, "refused")
    else:
        worker.ledger.end(op, "unknown")


def invalidate(bus: tms.Bus, pointer: int) -> bool:
    """End such a transaction as an operator does; False if the outcome is unknown."""
    try:
        bus.admin.transactions.invalidate(pointer)
    except TransactionNotFound:  # nothing of it was stored
        return True
    except TMSError as error:
        if not error.retriable:
            raise
        return False
    return True


def _post(worker: Worker, topic: str, operation: str, body: bytes) -> bytes | None:
    """Post; the answer, or None if there is none, or not yet."""
    parts = urlsplit(worker.job.url.partition(",")[0])
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    path = f"/v1/namespaces/default/topics/{topic}/{operation}"
    try:
        connection.request("POST", path, body, {"Content-Type": AVRO})
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status == http.client.CONFLICT:
        return None  # the service restarted meanwhile, and its own transaction has ended
    if answer.status != http.client.OK and answer.status < http.client.INTERNAL_SERVER_ERROR:
        worker.ledger.wrong(f"{operation} was answered {answer.status}: {raw!r:.200}")
    return raw if answer.status == http.client.OK else None
