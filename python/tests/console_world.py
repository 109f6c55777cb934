"""A small shop in messages, for pages of the console to show: topics of two namespaces, a group
that is behind, a queue with dead letters, delayed messages, an open transaction.

    shop:orders     4 partitions · group `billing` 60 behind · queue `packers`, 3 dead letters
    shop:payments   ids above 2^53, headers, a trace id
    shop:reminders  delayed messages
    audit           hostile keys and values
"""

import json
from datetime import UTC, datetime, timedelta

from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.client.client import Bus
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock

ORDERS, PAYMENTS, REMINDERS, AUDIT = "shop:orders", "shop:payments", "shop:reminders", "audit"
BILLING, PACKERS = "billing", "packers"
PLACED, BILLED, PAID = 240, 180, 40
POISONED = {1042: "two", 1077: "", 1101: "many"}  # quantities that no packer understands
CAUSE = "ValueError: quantity is {!r}, a number is needed"
ITEMS = ("lamp", "chair", "kettle", "rug", "clock")
HOSTILE = (
    b"<script>document.title='pwned'</script>",
    b"</td></table><a href='http://other.test/'>win</a>",
    b"\x1b]0;pwned\x07\x1b[31mred",
    "\u202egnp.exe".encode(),
    b"half \xf0\x9f\x92",
    b"{" * 10_000,
    b'"}});alert(1)//',
)


class Shop:
    """Fills a service through a bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    def fill(self) -> None:
        """Make everything."""
        bus = self.bus
        bus.create_topic(ORDERS, partitions=4, retention="30d")
        bus.create_topic(PAYMENTS, partitions=2)
        bus.create_topic(REMINDERS)
        bus.create_topic(AUDIT, durability="written")
        for number in range(PLACED):
            bus.publish(ORDERS, _order(1000 + number), key=b"customer-%d" % (number % 17))
        for number in range(PAID):
            bus.publish(
                PAYMENTS,
                json.dumps({"payment": 2**53 + 1 + number, "cents": 1999}).encode(),
                key=b"%d" % (1000 + number),
                headers={"traceparent": b"00-%032x-%016x-01" % (number + 1, number + 1)},
            )
        for value in HOSTILE:
            bus.publish(AUDIT, value, key=value, headers={"note": value})
        self._read()
        self._pack()
        later = datetime.now(UTC)
        for hours in (1, 5, 30):
            value = b'{"remind": "order %d"}' % (1000 + hours)
            bus.publish_later(REMINDERS, value, at=later + timedelta(hours=hours))

    def hold(self, engine: Engine) -> int:
        """Let a transaction that was begun elsewhere publish a message, so that committed readers
        of `shop:payments` wait for it. Returns its id."""
        pointer = SystemClock().now_ms() * 1_000_000
        blocks = [NewBlock(0, encode([b'{"payment": "open"}']))]
        topic = TopicName.parse(PAYMENTS)
        engine.transactions.submit(topic, blocks, pointer, "tephra").result(PATIENCE_S)
        return pointer

    def _read(self) -> None:
        """Let the group read the first orders of each partition."""
        consumer = self.bus.consumer(ORDERS, group=BILLING, start="earliest", stop_at_end=True)
        with consumer:
            for read, _ in enumerate(consumer, 1):
                consumer.ack()
                if read == BILLED:
                    break

    def _pack(self) -> None:
        """Let the queue settle most orders, and reject the poisoned ones."""
        queue = self.bus.queue(ORDERS, group=PACKERS)
        packed = 0
        while packed < PLACED - 30:
            for message in queue.receive(20, wait_s=20):
                packed += 1
                order = json.loads(message.value or b"")
                if isinstance(order["quantity"], int):
                    queue.ack(message)
                else:
                    queue.reject(message, CAUSE.format(order["quantity"]))
        queue.receive(5)  # which a worker that died still has
        until(lambda: not queue.describe().dying, "the rejected messages are dead letters")


def _order(number: int) -> bytes:
    order = {
        "order": number,
        "item": ITEMS[number % len(ITEMS)],
        "quantity": POISONED.get(number, 1 + number % 3),
    }
    return json.dumps(order).encode()
