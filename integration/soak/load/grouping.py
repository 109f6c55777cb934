"""Members of a group. With exactly-once each message becomes a message of the output topic, in the
transaction that moves the group; otherwise it is noted as handled."""

import time
from contextlib import ExitStack

import tms
from integration.soak.content import name_of
from integration.soak.ledger import Placed
from integration.soak.load.worker import TRANSACTION_REFUSALS, Worker
from tms.errors import Conflict, GroupNotFound, TMSError

QUIET_S = 90


def work(worker: Worker) -> None:
    """Be a member until the stop; with the option `drain`, until the group has no lag."""
    options = worker.job.options
    with worker.connect() as bus:
        if options.get("drain"):
            _drain(worker, bus)
            return
        while not worker.stopped:
            try:
                _member(worker, bus, worker.random.uniform(1, 8), stop_at_end=False)
            except Conflict:
                continue
            except TMSError as error:
                if not error.retriable:
                    raise


def _drain(worker: Worker, bus: tms.Bus) -> None:
    topic, group = worker.job.options["topic"], worker.job.options["group"]
    deadline = time.monotonic() + QUIET_S
    lag = -1
    while time.monotonic() < deadline and lag:
        try:
            _member(worker, bus, QUIET_S, stop_at_end=True)
            lag = bus.describe_group(topic, group=group).summary().lag or 0  # none is damaged
        except GroupNotFound:  # the topic is empty, or else the checker reports unhandled messages
            lag = 0
        except Conflict:
            continue
    worker.ledger.note("lag", group=group, topic=topic, lag=lag)


def _member(worker: Worker, bus: tms.Bus, seconds: float, stop_at_end: bool) -> None:
    options = worker.job.options
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        consumer = stack.enter_context(
            bus.consumer(
                options["topic"],
                group=tms.Group(
                    options["group"], delivery=options["delivery"], session_s=options["session_s"]
                ),
                stop_at_end=stop_at_end,
                wait_s=0.2,
            )
        )
        if not stop_at_end:
            stack.enter_context(worker.ending(consumer))
        if options["delivery"] == "exactly-once":
            for batch in consumer.batches():
                if not _transform(worker, bus, consumer, batch.messages()):
                    return
                if time.monotonic() > until:
                    return
            return
        for message in consumer:
            name = name_of(message.value, message.headers)
            worker.ledger.note("handled", group=options["group"], name=name)
            if time.monotonic() > until:
                return


def _transform(
    worker: Worker, bus: tms.Bus, consumer: tms.Consumer, messages: list[tms.Message]
) -> bool:
    """Commit outputs and positions; False if the member must begin anew, because it is fenced or
    the commit failed."""
    output = worker.job.options["output"]
    sent: list[Placed] = []
    for message in messages:
        name = name_of(message.value, message.headers)
        sent.append((output, None, worker.maker.make(name.encode())))
    op = worker.ledger.begin("commit", sent, whole=True)
    try:
        with bus.transaction() as tx:
            for _, _, one in sent:
                tx.send(output, one.value, one.key, one.headers)
            tx.ack(consumer)
    except BaseException as error:
        worker.failed(op, error, (*TRANSACTION_REFUSALS, Conflict))
        return False
    worker.done(op)
    return True
