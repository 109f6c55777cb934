"""Finding an offset among rows whose keys are times: offsets grow with keys, at a rate that changes
little. Pure, but for the probes.
"""

from collections.abc import Callable

from tms.log.records import BlockKey
from tms.log.recovery import header_of
from tms.model.ids import SEQUENCES_PER_MS
from tms.model.log import StoredBlock

_HALVED = 2  # of so many steps one halves, so that no history of a partition makes it slow


def search(
    first_from: Callable[[BlockKey], StoredBlock | None],
    low: BlockKey,
    high: BlockKey,
    end_offset: int,
    offset: int,
) -> StoredBlock | None:
    """The block that has an offset or, where it was cleaned away, the next one; None when there is
    none. `first_from(key)` is the first block whose last message has a key in [key, high], and
    `end_offset` the offset behind all of them. Each step is a probe: about 4 where messages came
    evenly, 20 where they came in bursts, at most 130.
    """
    least, most = _number(low), _number(high)
    base, end = -1, end_offset  # offset at `least`, unknown at first
    best: StoredBlock | None = None
    step, middle = 0, least
    while least <= most:
        found = first_from(_key(middle))
        if found is None:
            most = middle - 1
        else:
            header = header_of(found)
            if offset < header.base_offset:
                best, most, end = found, middle - 1, header.base_offset
            elif offset < header.base_offset + header.count:
                return found
            else:
                least = _number((found.time_ms, found.last_sequence)) + 1
                base = header.base_offset + header.count
        step += 1
        share = 0.5 if step % _HALVED == 0 or not base < end else (offset - base) / (end - base)
        middle = least + int((most - least) * min(max(share, 0.0), 1.0))
    return best


def _number(key: BlockKey) -> int:
    return key[0] * SEQUENCES_PER_MS + key[1]


def _key(number: int) -> BlockKey:
    return divmod(number, SEQUENCES_PER_MS)
