"""Bugs to plant where a page, a segment or an entry does not hold all there is, so that it is read
or written in parts."""

from collections.abc import Callable
from typing import Any

from sim.replacing import Replacement
from tms.log.partition import PartitionState
from tms.log.segments import SegmentChain
from tms.queues.state import QueueState


def _enter_the_next_segment_early() -> list[Replacement]:
    """A page that ends within a segment goes on in the next one."""

    def scan(self: SegmentChain, start: Any, stop: Any, bytes_max: int) -> Any:
        found: list[Any] = []
        room = bytes_max
        for segment in self.record.segments:
            if segment.last is not None and segment.last < start:
                continue
            blocks = self.scan_segment(segment, start, max(1, room), stop)
            found += blocks
            room -= sum(len(stored.block) for stored in blocks)
            if room <= 0 or (segment.last is not None and segment.last >= stop):
                break
        return found

    return [(SegmentChain, "scan", scan)]


def _seal_without_producers() -> list[Replacement]:
    """A new owner seals a partition without noting its producers."""
    right = PartitionState._save

    def save(self: PartitionState, *args: Any) -> None:
        if self.loaded:
            right(self, *args)

    return [(PartitionState, "_save", save)]


def _wait_for_what_is_gone() -> list[Replacement]:
    """A receive does not settle a message that it finds to be gone."""
    return [(QueueState, "settle_gone", lambda self, gone: [])]


PAGES: dict[str, Callable[[], list[Replacement]]] = {
    "enter-the-next-segment-early": _enter_the_next_segment_early,
    "seal-without-producers": _seal_without_producers,
    "wait-for-what-is-gone": _wait_for_what_is_gone,
}
