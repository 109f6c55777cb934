"""Numbers of producers whose sequences count messages (`log.counting`), for protocols whose servers
hand them out, as Kafka's do.

    counter/producer ─▶ reserve a range by compare-and-set ─▶ hand it out one by one, from memory

Invariants

* No number is handed out twice, by any process of the store, also after a crash: a range is
  reserved for good before its first number is handed out. The rest of a range is lost with its
  process.
* A range begins no earlier than the clock says. So numbers that were handed out after a backup are
  not handed out again by a store that was restored from it, unless the clock went back.
"""

import threading

from tms.block.header import PRODUCER_NUMBER_MAX
from tms.errors import DataCorrupt, StorageUnavailable
from tms.model.keys import PRODUCER_COUNTER
from tms.runtime.clock import Clock
from tms.store.base import Map

RESERVED = 1_000  # numbers in a range
CLOCK_MAX = PRODUCER_NUMBER_MAX // 2  # a wrong clock takes no number from there on
_EPOCH_S = 1_577_836_800  # 2020-01-01
_PER_S = 1 << 15
_ATTEMPTS = 64


class ProducerNumbers:
    """Hands out producer numbers. Thread-safe."""

    def __init__(self, metadata: Map, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._reserved = iter(range(0))

    def next(self) -> int:
        """A number that was never handed out before, from 1 to 2^47 - 1. Raises
        `StorageUnavailable`, `DataCorrupt`."""
        with self._lock:
            number = next(self._reserved, None)
            if number is None:
                self._reserved = iter(self._reserve())
                number = next(self._reserved)
            return number

    def _reserve(self) -> range:
        for _ in range(_ATTEMPTS):
            raw = self._metadata.get(PRODUCER_COUNTER)
            first = max(self._first(raw), self._by_clock())
            numbers = range(first, first + RESERVED)
            if numbers.stop > PRODUCER_NUMBER_MAX:
                raise DataCorrupt(
                    f"The record `{PRODUCER_COUNTER.decode()}` of the store says {raw!r:.40}, so "
                    "no producer number is left. Restore the record from a backup."
                )
            if self._metadata.compare_and_set(PRODUCER_COUNTER, raw, b"%d" % numbers.stop):
                return numbers
        raise StorageUnavailable("Many processes reserve producer numbers at once. Try again.")

    def _first(self, raw: bytes | None) -> int:
        if raw is None:
            return 1
        if not raw.isdigit():
            raise DataCorrupt(
                f"The record `{PRODUCER_COUNTER.decode()}` of the store is damaged: {raw!r:.40}. "
                "Restore it from a backup."
            )
        return int(raw)

    def _by_clock(self) -> int:
        return min(CLOCK_MAX, (self._clock.now_ms() // 1000 - _EPOCH_S) * _PER_S)
