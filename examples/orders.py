"""Exactly once, whatever dies: 10,000 orders become rows in SQLite and messages in two topics, by a
worker that is killed 200 times.

    python examples/orders.py [--orders N] [--kills N] [--seed N]

The worker reads the topic `orders` in a group. For each batch it writes a row per order, sends an
invoice and a shipment, and moves its group's position: one transaction. This program kills it at
random moments (SIGKILL), starts it again until everything is done, and then compares rows and
messages: each order exactly once, everywhere.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import sqlalchemy as sa

import tms
from tms.sql import SqlDatabase

BATCH = 25
_metadata = sa.MetaData()
ORDERS = sa.Table(
    "orders",
    _metadata,
    sa.Column("number", sa.Integer, nullable=False),  # not unique: the database must not help
    sa.Column("item", sa.String, nullable=False),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Orders, exactly once, under kills.")
    parser.add_argument("--orders", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    asked = parser.parse_args()
    print(f"{asked.orders:,} orders, {asked.kills} kills, --seed {asked.seed}")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        taking = fork(partial(take_orders, place, asked.orders))
        if os.waitpid(taking, 0)[1]:
            raise SystemExit("the orders could not be taken")
        began = time.monotonic()
        run_and_kill(place, asked.orders, asked.kills, random.Random(asked.seed))
        print(f"killed {asked.kills} times in {time.monotonic() - began:.0f} s")
        faults = compare(place, asked.orders)
    for fault in faults:
        print(f"WRONG: {fault}")
    if not faults:
        print("each order is one row, one invoice and one shipment")
    return 1 if faults else 0


def fork(work: Callable[[], None]) -> int:
    """Run this in a child process, which ends; returns its id. The parent opens no store before,
    because LevelDB does not work in a fork."""
    worker = os.fork()
    if worker:
        return worker
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def take_orders(place: Path, count: int) -> None:
    """Fill the topic `orders`."""
    with tms.open(place / "data") as bus:
        for topic in ("orders", "invoices", "shipments"):
            bus.create_topic(topic)
        with bus.producer("orders") as producer:
            for number in range(count):
                producer.send(b"%d" % number)


def work(place: Path, report: int) -> None:
    """Process orders until there are none; write a byte to `report` for each batch."""
    engine = sa.create_engine(f"sqlite:///{place / 'orders.db'}")
    _metadata.create_all(engine)
    database = SqlDatabase(engine)
    with tms.open(place / "data") as bus:
        database.recover(bus)
        consumer = bus.consumer("orders", group="shop", stop_at_end=True)
        messages = iter(consumer)
        while batch := list(islice(messages, BATCH)):
            with bus.transaction() as tx:
                rows = tx.join(database.rows())
                numbers = [int(message.value or b"") for message in batch]
                rows.execute(ORDERS.insert(), [{"number": n, "item": f"item {n}"} for n in numbers])
                for number in numbers:
                    tx.send("invoices", b"invoice %d" % number)
                    tx.send("shipments", b"shipment %d" % number)
                tx.ack(consumer)
            os.write(report, b".")


def run_and_kill(place: Path, orders: int, kills: int, chance: random.Random) -> None:
    """Start the worker and kill it repeatedly, then let it finish."""
    batches_left, killed = orders // BATCH, 0
    while True:
        started, report = os.pipe()
        worker = fork(partial(work, place, report))
        os.close(report)
        if killed < kills:
            # Anywhere: while it starts, while it recovers, and between any two steps of a batch.
            for _ in range(chance.randint(0, batches_left // (2 * (kills - killed)))):
                if not os.read(started, 1):
                    break
                batches_left -= 1
            time.sleep(chance.random() * 0.006)
            os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        os.close(started)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit("the worker failed")
        elif killed == kills:
            return


def compare(place: Path, orders: int) -> list[str]:
    """The deviations from exactly once, a line for each table or topic."""
    engine = sa.create_engine(f"sqlite:///{place / 'orders.db'}")
    with engine.connect() as connection:
        rows = Counter(number for (number,) in connection.execute(sa.select(ORDERS.c.number)))
    found = {"rows": rows}
    with tms.open(place / "data") as bus:
        for topic in ("invoices", "shipments"):
            values = (message.value or b"" for message in bus.consumer(topic, stop_at_end=True))
            found[topic] = Counter(int(value.split()[1]) for value in values)
    wanted = Counter(range(orders))
    return [
        f"{what}: {sum((wanted - have).values())} missing, {sum((have - wanted).values())} too many"
        for what, have in found.items()
        if have != wanted
    ]


if __name__ == "__main__":
    sys.exit(main())
