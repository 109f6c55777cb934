"""Fan-out: three groups on one topic; each gets every message and handles it in its own way.

    python examples/fan_out.py

Orders are published once. The group `billing` has two members that share the partitions and sum up
in order, exactly once. `search` is a view with the newest state of each order. `mailer` is a queue:
any number of workers take confirmations one by one; one of them fails at first and is delivered
again. No group knows of the others or waits for them.
"""

import tempfile
import threading
from collections import Counter
from pathlib import Path

import tms

TOPIC, TOTALS = "orders", "totals"
ORDERS = 200


def bill(bus: tms.Bus, cents: Counter[str], lock: threading.Lock) -> None:
    """A member of `billing`: publishes the total of a batch in the transaction that commits it."""
    with bus.consumer(
        TOPIC, group=tms.Group("billing", delivery="exactly-once"), stop_at_end=True
    ) as consumer:
        for batch in consumer.batches():
            with bus.transaction() as tx:
                total = sum(int(value or b"0") for value in batch.values())
                tx.send(TOTALS, b"%d" % total)
                tx.ack(consumer)
            with lock:
                cents["billed"] += total


def mail(bus: tms.Bus, mails: Counter[bytes], lock: threading.Lock) -> None:
    """A worker of `mailer`."""
    queue = bus.queue(TOPIC, group="mailer", lease_s=30, backoff_first_s=0.01)
    while messages := queue.receive(20, wait_s=0.2):
        for message in messages:
            if message.key == b"order-7" and message.deliveries == 1:
                queue.nack(message)  # the mail server was down: again, a little later
                continue
            with lock:
                mails[message.key or b""] += 1
            queue.ack(message)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tms.open(Path(name) / "data") as bus:
        bus.create_topic(TOPIC, partitions=4, durability="written")
        bus.create_topic(TOTALS, durability="written")
        for number in range(ORDERS):
            bus.publish(TOPIC, b"%d" % (100 + number), key=b"order-%d" % number)
        cents: Counter[str] = Counter()
        mails: Counter[bytes] = Counter()
        lock = threading.Lock()
        workers = [threading.Thread(target=bill, args=(bus, cents, lock)) for _ in range(2)]
        workers += [threading.Thread(target=mail, args=(bus, mails, lock)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        totals = [int(one.value or b"0") for one in bus.consumer(TOTALS, stop_at_end=True)]
        with bus.view(TOPIC) as search:
            print(f"{ORDERS} messages, {len(search)} orders in search")
        print(f"billed {sum(totals)} cents, expected {sum(range(100, 100 + ORDERS))}")
        print(f"{sum(mails.values())} mails to {len(mails)} orders")
        assert sum(totals) == cents["billed"] == sum(range(100, 100 + ORDERS))
        assert mails == Counter(b"order-%d" % number for number in range(ORDERS))


if __name__ == "__main__":
    main()
