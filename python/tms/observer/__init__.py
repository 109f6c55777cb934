"""Topics of a shared store as somebody sees them who owns none of them: read only, without a
service.

    records      the topics there are; the image of transactions and retention, read once for each
    partition    one partition: where it begins and ends, and its committed blocks
    ending       where a segment ends that its owner may be writing to
    rows         the rows of a partition, and its record

Invariants

* Nothing is written and nobody is fenced off.
* What was seen once is seen again, until its retention ends: only what no owner can take back any
  more is taken as stored, and only what the transactions' image decides is passed.
* It may lag behind: by the age of the image, and by what was written last while a partition
  changes hands.
"""

from tms.observer.ending import End
from tms.observer.partition import ObservedPartition, Piece, shown
from tms.observer.records import ObservedTopic, StoreObserver

__all__ = ["End", "ObservedPartition", "Piece", "ObservedTopic", "StoreObserver", "shown"]
