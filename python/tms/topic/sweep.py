"""Finding, once at the start, the maps that a crash left behind.

A map is created before the partition record names it, and dropped after the record has forgotten
it. So after a crash in between there may be maps that no record names; nothing in them was ever
acknowledged, or it is expired. Only for stores that one process has for itself.
"""

import structlog

from tms.log.records import PartitionRecord, decode
from tms.model import keys
from tms.store.base import Map, Store

_PREFIX = b"partition/"
_SCAN_BYTES = 4 << 20
_log = structlog.get_logger(__name__)


def sweep(store: Store, metadata: Map) -> int:
    """Drop every segment map that no partition record names; returns how many."""
    left = set(store.names("t"))
    start = _PREFIX
    while rows := metadata.scan(start, keys.prefix_stop(_PREFIX), _SCAN_BYTES):
        for key, raw in rows:
            uid, partition = int(key[10:18], 16), int(key[19:])
            for segment in decode(raw, PartitionRecord, key).segments:
                left.discard(keys.segment_map(uid, partition, segment.number))
        start = rows[-1][0] + b"\0"
    for name in sorted(left):
        store.drop(name)
    if left:
        _log.info("maps_swept", maps=len(left))
    return len(left)
