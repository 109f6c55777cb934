"""Encoded batches of blocks, so that all consumers of a block pay for one conversion.

Invariants

* A batch is found only for the bytes from which it was made: compaction and erasing change a
  block's header, of which the key is a part.
* The batches have at most `bytes_max` together; those that were read least recently go first.
* One thread at a time uses it, such as an event loop. Batches may be encoded by others.
"""

from collections import OrderedDict

from tms.block import HEADER_BYTES
from tms.model.message import Buffer, StoredBlock

ENTRY_BYTES = 512  # of a batch's key and place

BatchKey = tuple[int, int, int, int, int, int, bytes]


def identity(topic_uid: int, stored: StoredBlock, leader_epoch: int) -> BatchKey:
    """The key of a block's batch; it differs if any argument of `encode` does."""
    block = stored.block
    head = bytes(block[:HEADER_BYTES])
    place = stored.partition, stored.time_ms, stored.last_sequence, leader_epoch
    return (topic_uid, *place, len(block), head)


class EncodedBatches:
    """The batches that were encoded last, at most `bytes_max` bytes of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[BatchKey, Buffer] = OrderedDict()
        self.bytes = 0

    def find(self, key: BatchKey) -> Buffer | None:
        """The batch, if it is remembered."""
        batch = self._batches.get(key)
        if batch is not None:
            self._batches.move_to_end(key)
        return batch

    def add(self, key: BatchKey, batch: Buffer) -> None:
        """Remember a batch. One that is larger than all of them may be is passed over."""
        size = len(batch) + ENTRY_BYTES
        if size > self._bytes_max or key in self._batches:
            return
        self._batches[key] = batch
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, oldest = self._batches.popitem(last=False)
            self.bytes -= len(oldest) + ENTRY_BYTES
