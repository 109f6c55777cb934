"""Topics of a shared store for a reader that owns none of them: read only, without a service.

    records      the topics there are; the image of transactions and retention, read once for each
    partition    one partition: its begin and end, and its committed blocks
    ending       the end of a segment that its owner may be writing to
    rows         the rows of a partition, and its record

Invariants

* Nothing is written, and no owner is fenced off.
* A message that was seen once is seen again until its retention ends: only rows that no owner can
  take back any more count as stored, and only decided transactions are passed.
* It may lag behind: by the age of the image, and by the last writes while a partition
  changes hands.
"""

from tms.engine.observer.ending import End
from tms.engine.observer.partition import ObservedPartition, Piece, shown
from tms.engine.observer.records import ObservedTopic, StoreObserver

__all__ = ["End", "ObservedPartition", "Piece", "ObservedTopic", "StoreObserver", "shown"]
