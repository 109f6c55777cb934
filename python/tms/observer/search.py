"""Finding an offset among rows whose keys are times: offsets grow with keys, at a rate that changes
little. Pure, but for the probes.

A place that was found stays true as long as the topic lives.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tms.log.records import FIRST_KEY, BlockKey
from tms.model.ids import SEQUENCES_PER_MS
from tms.observer.ending import End
from tms.observer.rows import ObservedBlock

PLACES_MAX = 16
_NOTHING = End(0, FIRST_KEY)
_HALVED = 2  # of so many steps one halves, so that no history of a partition makes it slow


@dataclass(slots=True)
class KnownPartition:
    """What earlier reads of a partition know: an end before which every message is decided, and
    the keys of the first messages of some blocks, by offset."""

    end: End = _NOTHING
    places: dict[int, BlockKey] = field(default_factory=dict)

    def note(self, offset: int, key: BlockKey) -> None:
        """Keep a place, and the newest ones that were noted before."""
        kept = [*self.places.items()][1 - PLACES_MAX :]
        self.places = {**dict(kept), offset: key}

    def place(self, offset: int) -> BlockKey | None:
        """The key that parts what is before an offset from what is not, when it is known."""
        return self.end.key if offset == self.end.offset else self.places.get(offset)


def search(
    first_from: Callable[[BlockKey], ObservedBlock | None],
    low: BlockKey,
    high: BlockKey,
    end_offset: int,
    offset: int,
) -> ObservedBlock | None:
    """The block that has an offset or, where it was cleaned away, the next one; None when there is
    none. `first_from(key)` is the first block whose last message has a key in [key, high], and
    `end_offset` the offset behind all of them. Each step is a probe: about 4 where messages came
    evenly, 20 where they came in bursts, at most 130.
    """
    least, most = _number(low), _number(high)
    base, end = -1, end_offset  # offset at `least`, unknown at first
    best: ObservedBlock | None = None
    step, middle = 0, least
    while least <= most:
        found = first_from(_key(middle))
        if found is None:
            most = middle - 1
        elif offset < found.base_offset:
            best, most, end = found, middle - 1, found.base_offset
        elif offset < found.end_offset:
            return found
        else:
            least, base = _number(found.key) + 1, found.end_offset
        step += 1
        share = 0.5 if step % _HALVED == 0 or not base < end else (offset - base) / (end - base)
        middle = least + int((most - least) * min(max(share, 0.0), 1.0))
    return best


def _number(key: BlockKey) -> int:
    return key[0] * SEQUENCES_PER_MS + key[1]


def _key(number: int) -> BlockKey:
    return divmod(number, SEQUENCES_PER_MS)
