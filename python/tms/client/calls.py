"""What the parts of a bus have in common."""

from collections import deque
from collections.abc import Callable, Sequence

from tms.client.groups.member import Member
from tms.client.publish.known import Known, Publishing
from tms.client.transport import LocalTransport, RemoteTransport, TransactionsPort
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
        self._leavers: deque[Member] = deque()  # of groups, whose consumers were dropped

    @property
    def transactions(self) -> TransactionsPort:
        """All transactions, for those who look after them; to make one: `Bus.transaction`."""
        return self._transport.transactions

    def mover(self) -> Callable[[Sequence[PositionChange]], None]:
        """What moves positions of groups; for consumers."""
        return self._transport.transactions.move

    def look_up(self, topic: str) -> Known:
        """Ask for a topic's partitions and limits, and remember them. Raises `TopicNotFound`."""
        self._publishing.forget(topic)
        found = self._transport.describe_topic(TopicName.parse(topic))
        return self._publishing.learn(topic, found)
