"""What the parts of a bus have in common."""

from collections.abc import Callable, Sequence

from tms.client.publish.known import Known, Publishing
from tms.client.transport import LocalTransport, QueuesPort, RemoteTransport, TransactionsPort
from tms.clock import Clock
from tms.model.topic import TopicName
from tms.model.transaction import PositionChange


class BusCalls:
    """Calls over one transport. Thread-safe."""

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        publishing: Publishing,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._transport = transport
        self._publishing = publishing
        self._clock = clock
        self._timeout_s = timeout_s

    @property
    def transactions(self) -> TransactionsPort:
        """All transactions, for those who look after them; to make one: `Bus.transaction`."""
        return self._transport.transactions

    @property
    def queue_port(self) -> QueuesPort:
        """All queues, for those who look after them; to work on one: `Bus.queue`."""
        return self._transport.queues

    def mover(self) -> Callable[[Sequence[PositionChange]], None]:
        """What moves positions of groups; for consumers."""
        return self._transport.transactions.move

    def look_up(self, topic: str) -> Known:
        """Ask for a topic's partitions and limits, and remember them. Raises `TopicNotFound`."""
        self._publishing.forget(topic)
        found = self._transport.describe_topic(TopicName.parse(topic))
        return self._publishing.learn(topic, found)
