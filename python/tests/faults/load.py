"""Publishers in threads of the test, against a service: each has a partition of its own and notes
acknowledgements."""

import threading
from typing import Self

import tms
from tests.faults.history import SYNCED, WRITTEN, History, value_of
from tms.errors import TMSError

STOP_S = 60


class Load:
    """Publishers that go on until the block ends, through errors that they count.

    Each publish is tried until `timeout_s`; then its outcome is unknown and the next one follows.
    """

    def __init__(
        self, url: str, topic: str, publishers: int = 2, size: int = 0, timeout_s: float = 30
    ) -> None:
        self.history = History(partitions=publishers)
        self.errors: list[TMSError] = []
        self._url = url
        self._topic = topic
        self._size = size
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(first,), daemon=True)
            for first in range(publishers)
        ]

    def __enter__(self) -> Self:
        with tms.connect(self._url) as bus:
            bus.create_topic(self._topic, partitions=self.history.partitions)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let every publisher finish its message."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_S)
            assert not thread.is_alive(), "a publisher hangs"

    def acknowledged(self) -> int:
        return len(self.history.acknowledged)

    def _publish(self, first: int) -> None:
        history, number = self.history, first
        with tms.connect(self._url, timeout_s=self._timeout_s) as bus:
            while not self._stop.is_set():
                history.tried.append(number)
                durability = WRITTEN if number % 5 == 1 else SYNCED
                try:
                    id = bus.publish(
                        self._topic,
                        value_of(0, number, self._size),
                        partition=number % history.partitions,
                        durability=durability,
                    )
                except TMSError as error:
                    self.errors.append(error)
                    if self._stop.wait(0.02):
                        return
                else:
                    history.acknowledged[number] = str(id)
                    if durability == SYNCED:
                        history.synced.add(number)
                number += history.partitions
