"""What a bus does with queues."""

from contextlib import suppress
from typing import Unpack

from tms.client.calls import BusCalls
from tms.client.queue import Queue
from tms.errors import QueueNotFound
from tms.model.queue import QueueInfo, QueueOptions, QueueSettings, in_seconds
from tms.model.topic import TopicName
from tms.model.transaction import check_group


class QueueCalls(BusCalls):
    """The part of a bus that makes and lists queues. Thread-safe."""

    def queue(self, topic: str, *, group: str, **settings: Unpack[QueueOptions]) -> Queue:
        """A queue over a topic, made if there is none: see `QueueSettings` for what can be said of
        it. Without settings it is taken as it is; with some, one that exists has to have the same,
        the others at their defaults. Raises `TopicNotFound`, `Conflict`, `Invalid`."""
        name, port = TopicName.parse(topic), self._transport.queues
        check_group(group)
        info: QueueInfo | None = None
        if not settings:
            with suppress(QueueNotFound):
                info = port.describe(name, group)
        if info is None:
            info = port.declare(name, group, QueueSettings.of(in_seconds(settings)))
        return Queue(lambda: self._transport.queues, name, group, info.settings, self._clock)

    def queues(self, topic: str) -> list[QueueInfo]:
        """The queues of a topic, by name. Raises `TopicNotFound`."""
        return self._transport.queues.list_queues(TopicName.parse(topic))
