"""A program that opens the data directory itself: single publishes, transactions with a table, a
thread that scans the table meanwhile."""

import resource
import threading
from pathlib import Path

import tms
from integration.soak.load.publishing import step
from integration.soak.load.worker import Worker
from tms.log.partition import LogLimits

TABLE = "rows"


def work(worker: Worker) -> None:
    """Publish and commit until the job is over, or the process is killed."""
    options = worker.job.options
    log = LogLimits(**options["log"]) if options.get("log") else LogLimits()
    config = dict(options.get("config", {}))
    if most := options.get("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tms.open(Path(options["data"]), log=log, **config) as bus:
        _create(bus, worker)
        ended = threading.Event()
        scanning = threading.Thread(target=_scan, args=(worker.branch("scan"), bus, ended))
        scanning.start()
        try:
            _lone(worker.branch("lone"), bus, int(options["lone"]))
            mixed = worker.branch("mixed")
            known: dict[tuple[str, bytes], str] = {}
            while not mixed.over:
                _commit(mixed, bus)
                step(mixed, bus, mixed.topic(published=True), known)
        finally:
            ended.set()
            scanning.join()


def _create(bus: tms.Bus, worker: Worker) -> None:
    for name, of in worker.job.topics.items():
        bus.create_topic(name, **of["settings"])


def _lone(worker: Worker, bus: tms.Bus, count: int) -> None:
    """Publish many small blocks: each message is one."""
    worker.left = count
    topic = worker.topic(lone=True)
    while not worker.over:
        one = worker.maker.make(size=worker.random.randint(20, 120))
        worker.attempt(
            "publish",
            [(topic, None, one)],
            lambda one=one: bus.publish(topic, one.value, None, one.headers, None, "written"),  # type: ignore[misc]
            ids=lambda id: [id],
            durability="written",
        )


def _commit(worker: Worker, bus: tms.Bus) -> None:
    """Commit a message and two rows of a table with the same value."""
    topic = worker.topic(table=True)
    one = worker.maker.make()
    op = worker.ledger.begin("commit", sent := [(topic, None, one)], whole=True, table=TABLE)
    worker.spend(sent)
    try:
        with bus.transaction() as tx:
            rows = bus.table(TABLE).within(tx)
            rows.put(b"a/" + one.name.encode(), b"1")
            rows.put(b"last/1", one.name.encode())
            rows.put(b"last/2", one.name.encode())
            tx.send(topic, one.value, one.key, one.headers)
    except BaseException as error:
        worker.failed(op, error)
    else:
        worker.done(op)


def _scan(worker: Worker, bus: tms.Bus, ended: threading.Event) -> None:
    """Check that two rows that are always written together are always seen together."""
    table = bus.table(TABLE)
    while not ended.wait(0.01):
        found = dict(table.scan(b"last/", b"last0"))
        if len(set(found.values())) > 1:
            worker.ledger.wrong(f"a scan saw half of a transaction: {found}")
            return
