"""Transactions over several topics, with `expect` of old ids, aborted ones, and large ones that are
staged."""

import tms
from integration.soak.ledger import Placed
from integration.soak.load.publishing import NOTHING, UNSURE, some
from integration.soak.load.worker import Worker
from tms.errors import TransactionConflict, TransactionEnded, WrongLastId


def work(worker: Worker) -> None:
    """Commit until the job is over."""
    known: dict[bytes, str] = {}
    topics = worker.topics(committed=True)
    with worker.connect() as bus:
        while not worker.over:
            if worker.random.random() < 0.4:
                _expecting(worker, bus, topics[0], known)
            else:
                _several(worker, bus, topics)


def _several(worker: Worker, bus: tms.Bus, topics: list[str]) -> None:
    random = worker.random
    sent: list[Placed] = []
    for topic in random.sample(topics, random.randint(1, len(topics))):
        sent += [(topic, None, one) for one in some(worker, topic, random.randint(1, 30))]
    if random.random() < worker.job.options.get("staged", 0.02):
        topic = random.choice(topics)
        sent += [(topic, None, worker.maker.make(size=1 << 20)) for _ in range(17)]
    aborted = random.random() < 0.15
    op = worker.ledger.begin("commit", sent, whole=True)
    worker.spend(sent)
    try:
        tx = bus.transaction()
        for topic, _, one in sent:
            tx.send(topic, one.value, one.key, one.headers)
        if aborted:
            tx.abort()
            worker.ledger.end(op, "refused")
            return
        ids = tx.commit()
    except BaseException as error:
        interrupted = isinstance(error, TransactionEnded) and error.details["outcome"] == "invalid"
        worker.failed(op, error, (TransactionEnded,) if interrupted else (TransactionConflict,))
    else:
        worker.done(op, ids or None)


def _expecting(worker: Worker, bus: tms.Bus, topic: str, known: dict[bytes, str]) -> None:
    """Commit messages with `expect`, with keys that no other job writes, most of which were last
    written long ago."""
    key = b"%s!%d" % (worker.name.encode(), worker.random.randrange(200))
    if known.get(key) == UNSURE:
        return
    wrong = key in known and worker.random.random() < 0.2
    expect = NOTHING if wrong else known.get(key, NOTHING)
    one = worker.maker.make(key)
    op = worker.ledger.begin("commit", sent := [(topic, None, one)], whole=True)
    worker.spend(sent)
    try:
        tx = bus.transaction()
        tx.send(topic, one.value, key, one.headers, expect=expect)
        ids = tx.commit()
    except BaseException as error:
        worker.failed(op, error, (WrongLastId,) if wrong else ())
        if not wrong:
            known[key] = UNSURE
        return
    worker.done(op, ids or None)  # an answer repeated after a restart has no ids
    if wrong:
        worker.ledger.wrong(f"{one.name} committed although nothing of {key!r} was expected")
    known[key] = str(ids[0]) if ids else UNSURE
