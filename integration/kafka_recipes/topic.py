"""A topic as TMS's own consumer reads it while a recipe writes to it."""

import tms
from tests.waiting import until
from tms.errors import TopicNotFound

POLL_S = 0.2


class Topic:
    """The committed messages of a topic, in the order in which they came. The service may restart
    meanwhile. Waits until the topic exists."""

    def __init__(self, bus: tms.Bus, name: str) -> None:
        until(lambda: _exists(bus, name), f"{name} exists")
        self._consumer = bus.consumer(name, start="earliest")
        self._rows: list[tuple[str, str]] = []

    def rows(self) -> list[tuple[str, str]]:
        """Keys and values of the messages so far, as text; nothing is an empty text. Each call
        reads what has come since the last one, as far as it need not wait."""
        message = self._consumer.poll(POLL_S)
        while message is not None:
            self._rows.append(((message.key or b"").decode(), (message.value or b"").decode()))
            message = self._consumer.poll(0)
        return self._rows

    def values(self) -> list[str]:
        """The values of the messages so far."""
        return [value for _, value in self.rows()]


def _exists(bus: tms.Bus, name: str) -> bool:
    try:
        return bus.describe_topic(name) is not None
    except TopicNotFound:
        return False
