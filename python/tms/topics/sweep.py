"""The first access to a store: its map `metadata`, and the maps that a crash left behind.

A map is created before the partition record names it, and dropped after the record has removed it.
So a crash in between leaves maps that no record names. They are empty, or hold only messages that
lie before the partition's floor or were merged into an earlier segment. Any other unnamed map was
acknowledged, and its record was lost: such a store is refused, never swept. Only for stores that
one process has for itself.
"""

from tms.errors import Conflict, DataCorrupt
from tms.log.records import FIRST_KEY, BlockKey, PartitionRecord, decode
from tms.model import keys
from tms.runtime.events import EventLog
from tms.store.base import Map, Store, pages

_SEGMENTS = "t"  # first letter of the names of segment maps
SCAN_BYTES = 4 << 20
_log = EventLog(__name__)


def open_metadata(store: Store) -> Map:
    """The map `metadata`, created in an empty store. Raises `DataCorrupt` if it was lost."""
    if store.names(keys.METADATA_MAP):
        return store.open(keys.METADATA_MAP, create=False)
    if store.names(_SEGMENTS):
        raise DataCorrupt(
            f"The map {keys.METADATA_MAP} is missing, but there are messages. Restore it from a "
            "backup, or run `tms fsck --repair`."
        )
    try:
        return store.open(keys.METADATA_MAP, create=True)
    except Conflict:  # another process was first
        return store.open(keys.METADATA_MAP, create=False)


def sweep(store: Store, metadata: Map) -> None:
    """Drop the segment maps that no partition record needs. Raises `DataCorrupt` if one of them
    must have been named by its record. In a store that others may write to nothing is dropped:
    another process may be about to record it."""
    if store.shared:
        return
    left = {
        name
        for name in store.names(_SEGMENTS)
        if not keys.is_payload_map(name) and not keys.is_delayed_map(name)
    }
    records: dict[str, PartitionRecord] = {}
    start, stop = keys.PARTITION_PREFIX, keys.prefix_stop(keys.PARTITION_PREFIX)
    for page in pages(metadata, start, stop, SCAN_BYTES):
        for key, raw in page:
            uid, partition = int(key[10:18], 16), int(key[19:])
            record = decode(raw, PartitionRecord, key)
            records[keys.partition_prefix(uid, partition)] = record
            for segment in record.segments:
                left.discard(keys.segment_map(uid, partition, segment.number))
    for name in sorted(left):
        _require_unneeded(store, name, records.get(name[: name.rfind("/") + 1]))
    for name in sorted(left):
        store.drop(name)
    if left:
        _log.info("maps_swept", maps=len(left))


def _require_unneeded(store: Store, name: str, record: PartitionRecord | None) -> None:
    newest = store.open(name, create=False).scan(None, None, 1, reverse=True)
    if not newest:
        return
    last = keys.split_block_key(newest[0][0])
    if record is not None and (last < record.floor or _is_merged(name, last, record)):
        return
    raise DataCorrupt(
        f"The map {name} holds messages, but no record of a partition names it: the record was "
        "lost. Run `tms fsck --repair`, or restore a backup."
    )


def _is_merged(name: str, last: BlockKey, record: PartitionRecord) -> bool:
    """True if an earlier segment has the blocks of a map, up to its last key."""
    prefix = name[: name.rfind("/") + 1]
    number = int(name[len(prefix) + 1 :])
    return any(
        segment.number < number and last <= (segment.last or FIRST_KEY)
        for segment in record.segments
    )
