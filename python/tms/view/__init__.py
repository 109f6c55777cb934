"""Topics of a shared store as somebody sees them who owns none of them: read only, without a
service.

    records      the topics there are, and how their partitions' records say they stand
    partition    one partition: where it begins and ends, and its committed blocks

Invariants

* Nothing is written and nobody is fenced off.
* What was seen once is seen again, until its retention ends: only what no owner can take back any
  more is taken as stored, and only what the transactions' image decides is passed.
"""

from tms.view.partition import PartitionView
from tms.view.records import TopicView, View

__all__ = ["PartitionView", "TopicView", "View"]
