"""Clients of librdkafka that publish while brokers come and go, and a group that reads afterwards:
what was acknowledged is there once, and no transaction is torn."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import confluent_kafka
from confluent_kafka import admin

from tests.waiting import until

PATIENCE_S = 90.0
KEYS = 20
GET_ON = 120  # messages that show that clients get on


class KafkaLoad:
    """An idempotent producer and a transactional one on a topic of its own, while it is entered."""

    def __init__(self, servers: str, topic: str, partitions: int = 6) -> None:
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._ends = threading.Event()
        self._failures: list[object] = []
        self._plain: list[bytes] = []
        self._committed: list[bytes] = []
        client = admin.AdminClient({"bootstrap.servers": servers})
        wanted = admin.NewTopic(topic, partitions)
        [made] = client.create_topics([wanted], operation_timeout=PATIENCE_S).values()
        made.result(PATIENCE_S)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Publish while this lasts."""
        threads = [
            threading.Thread(target=self._noting, args=(work,))
            for work in (self._publish, self._transact)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            for thread in threads:
                thread.join(2 * PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a client is stuck"
        assert not self._failures, self._failures

    def get_on(self) -> None:
        """Wait until both producers have published more."""
        plain, committed = len(self._plain), len(self._committed)
        deadline_s = time.monotonic() + PATIENCE_S
        while not (
            len(self._plain) >= plain + GET_ON and len(self._committed) >= committed + GET_ON
        ):
            assert not self._failures, self._failures
            assert time.monotonic() < deadline_s, "the clients do not get on"
            time.sleep(0.01)

    def check(self) -> int:
        """Read everything by a group of two; returns the number of messages."""
        wanted = Counter(self._plain + self._committed)
        found = self._read(len(wanted))
        assert not {value: count for value, count in found.items() if count > 1}, "doubled"
        assert not set(wanted) - set(found), "lost"
        of_transactions = Counter(value.split()[1] for value in found if value.startswith(b"in "))
        assert set(of_transactions.values()) <= {self._partitions}, "torn"
        return len(found)

    # -- the producers ---------------------------------------------------------------------------

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failures.append(error)

    def _publish(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 1}
        )

        def note(error: object, message: confluent_kafka.Message) -> None:
            if error:
                self._failures.append(error)
            else:
                self._plain.append(message.value())

        number = 0
        while not self._ends.is_set():
            number += 1
            value = b"plain %d" % number
            producer.produce(self._topic, value, key=b"%d" % (number % KEYS), on_delivery=note)
            producer.poll(0.001)
        assert not producer.flush(PATIENCE_S), "the producer is not flushed"

    def _transact(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": f"of {self._topic}"}
        )
        producer.init_transactions(PATIENCE_S)
        number = 0
        while not self._ends.is_set():
            number += 1
            rows = [b"in %d %d" % (number, partition) for partition in range(self._partitions)]
            try:
                producer.begin_transaction()
                for partition, row in enumerate(rows):
                    producer.produce(self._topic, row, partition=partition)
                producer.commit_transaction(PATIENCE_S)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(PATIENCE_S)
            else:
                self._committed += rows

    # -- the group -------------------------------------------------------------------------------

    def _read(self, count: int) -> Counter[bytes]:
        """All committed messages, at least so many if they come in time."""
        found: list[bytes] = []
        newest_s = [time.monotonic()]
        deadline_s = time.monotonic() + PATIENCE_S

        def consume() -> None:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self._servers,
                    "group.id": f"of {self._topic}",
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                }
            )
            consumer.subscribe([self._topic])
            try:
                while time.monotonic() < deadline_s:
                    message = consumer.poll(0.2)
                    if message is not None and not message.error():
                        found.append(message.value())
                        newest_s[0] = time.monotonic()
                    elif len(found) >= count and time.monotonic() - newest_s[0] > 1:
                        break
            finally:
                consumer.close()

        threads = [threading.Thread(target=self._noting, args=(consume,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self._failures, self._failures
        return Counter(found)


def brokers_answer(servers: str, count: int) -> None:
    """Wait until so many brokers are there."""
    client = admin.AdminClient({"bootstrap.servers": servers})

    def are_there() -> bool:
        try:
            return len(client.list_topics(timeout=5).brokers) == count
        except confluent_kafka.KafkaException:
            return False

    until(are_there, f"{count} brokers are there")
