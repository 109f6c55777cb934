"""Workers of a queue: they acknowledge, release, reject, extend, settle in transactions, and let
leases end."""

import time

import tms
from integration.soak.content import name_of
from integration.soak.load.worker import TRANSACTION_REFUSALS, Worker
from tms.errors import TMSError
from tms.model.queue import Token

QUIET_S = 90
_COUNTS = ("backlog", "leased", "ready", "delayed", "blocked", "dying")


def work(worker: Worker) -> None:
    """Work until the stop; with the option `drain`, until nothing is left."""
    options = worker.job.options
    with worker.connect() as bus:
        queue = bus.queue(options["topic"], group=options["group"])
        if options.get("drain"):
            _drain(worker, bus, queue)
            return
        while not worker.stopped:
            messages = _receive(worker, queue, 0.5)
            _handle(worker, bus, queue, messages)


def _receive(worker: Worker, queue: tms.Queue, wait_s: float) -> list[tms.Delivered]:
    limit = int(2 ** worker.random.uniform(0, worker.job.options.get("receive_log2", 8)))
    began = time.monotonic()
    try:
        messages = queue.receive(limit, wait_s)
    except TMSError as error:
        if not error.retriable:
            raise
        return []
    for one in messages:
        worker.ledger.note(
            "lease",
            queue=_name(worker),
            name=name_of(one.value, one.headers),
            deliveries=one.deliveries,
            number=Token.parse(one.token).deliveries,
            begin=began,
            lease_s=queue.settings.lease_s,
        )
    return messages


def _name(worker: Worker) -> str:
    return f"{worker.job.options['topic']}/{worker.job.options['group']}"


def _handle(worker: Worker, bus: tms.Bus, queue: tms.Queue, messages: list[tms.Delivered]) -> None:
    """Settle the messages, in parts that are drawn."""
    while messages:
        part = messages[: worker.random.randint(1, len(messages))]
        messages = messages[len(part) :]
        [what] = worker.random.choices(
            ("ack", "commit", "nack", "release", "reject", "extend", "nothing"),
            (60, 10, 8, 4, 2, 6, 3),
        )
        if what == "nothing":
            continue
        if what == "commit" and worker.job.options.get("output"):
            _commit(worker, bus, queue, part)
        elif what == "extend":
            _settle(worker, queue, "extend", part)
            _settle(worker, queue, "ack", part)
        else:
            _settle(worker, queue, "ack" if what == "commit" else what, part)


def _settle(worker: Worker, queue: tms.Queue, what: str, messages: list[tms.Delivered]) -> None:
    names = [name_of(one.value, one.headers) for one in messages]
    op = worker.ledger.begin("settle", queue=_name(worker), what=what, names=names)
    try:
        match what:
            case "nack":
                delay_s = worker.random.choice((None, 0, 0.2))
                result = queue.nack([m.token for m in messages], delay_s)
            case "release":
                result = queue.release([m.token for m in messages])
            case "reject":
                result = queue.reject([m.token for m in messages], "drawn")
            case "extend":
                result = queue.extend([m.token for m in messages])
            case _:
                result = queue.ack([m.token for m in messages])
    except BaseException as error:
        worker.failed(op, error)
        return
    late = set(result.fenced)
    fenced = [n for n, m in zip(names, messages, strict=True) if m.token in late]
    worker.ledger.end(op, "done", fenced=fenced)


def _commit(worker: Worker, bus: tms.Bus, queue: tms.Queue, messages: list[tms.Delivered]) -> None:
    output = worker.job.options["output"]
    names = [name_of(one.value, one.headers) for one in messages]
    sent = [(output, None, worker.maker.make(name.encode())) for name in names]
    op = worker.ledger.begin("commit", sent, whole=True, queue=_name(worker), names=names)
    try:
        with bus.transaction() as tx:
            for _, _, one in sent:
                tx.send(output, one.value, one.key, one.headers)
            tx.ack(queue, messages)
    except BaseException as error:
        worker.failed(op, error, TRANSACTION_REFUSALS)
    else:
        worker.done(op)


def _drain(worker: Worker, bus: tms.Bus, queue: tms.Queue) -> None:
    """Acknowledge all messages until none is left, or it takes too long."""
    deadline = time.monotonic() + QUIET_S
    counts: dict[str, int] = {}
    while time.monotonic() < deadline:
        messages = _receive(worker, queue, 0.5)
        if messages:
            _settle(worker, queue, "ack", messages)
            continue
        found = queue.describe()
        counts = {name: getattr(found, name) for name in _COUNTS}
        if not any(counts.values()):
            break
    worker.ledger.note("quiet", queue=_name(worker), counts=counts)
