"""The image of all transactions in the store, for readers and cleaners other than this process:
HBase's coprocessor, and through it everything that scans the tables.

Invariants

* The image says only what was in the journal before. It may be old, which only delays: a
  transaction that it calls invalid stays so.
* It changes by compare-and-set. A process that finds another image there, because another process
  has taken the journal over since, asks the journal before it writes again.
"""

from dataclasses import replace

from tms.errors import TMSError
from tms.model import keys
from tms.model.transaction_image import TransactionImage, encode_image
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.store.base import Map
from tms.transactions.images import fates_of
from tms.transactions.manager import TransactionManager

INTERVAL_MS = 5_000
IDLE_MS = 60_000  # when nothing changed: the time in it says up to when that holds
_log = EventLog(__name__)


class StoredImage:
    """Keeps the image in the map `metadata` up to date."""

    def __init__(self, metadata: Map, manager: TransactionManager, clock: Clock) -> None:
        self._metadata = metadata
        self._manager = manager
        self._clock = clock
        self._raw = metadata.get(keys.TRANSACTIONS_IMAGE)
        self._shown: TransactionImage | None = None
        self._written_ms = 0
        self._due_ms = 0
        self.keep()

    def keep(self) -> None:
        """Write the image if it is due and says something new. A failure is logged and tried again
        later: what is cleaned waits for it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + INTERVAL_MS
        try:
            self.write(now_ms)
        except TMSError as error:
            _log.warning("image_not_written", error=error.message)

    def close(self) -> None:
        """Write the image once more, so that what is read without a service is up to date."""
        self._due_ms = 0
        self.keep()

    def write(self, now_ms: int) -> None:
        """Write the image as of now, unless it says nothing new. Raises the error of the write."""
        fates = self._fates(now_ms)
        if self._shown == replace(fates, time_ms=self._written_ms) and (
            now_ms < self._written_ms + IDLE_MS
        ):
            return
        raw = encode_image(fates)
        while not self._metadata.compare_and_set(keys.TRANSACTIONS_IMAGE, self._raw, raw):
            self._raw = self._metadata.get(keys.TRANSACTIONS_IMAGE)
            self._manager.confirm()
            fates = self._fates(now_ms)
            raw = encode_image(fates)
        self._raw, self._shown, self._written_ms = raw, fates, now_ms

    def _fates(self, now_ms: int) -> TransactionImage:
        return self._manager.look(lambda state: fates_of(state, now_ms))
