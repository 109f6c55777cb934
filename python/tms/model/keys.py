"""How places in the store are spelled, and which partition a key belongs to.

Maps, which the store opens by name; a uid names one life of a topic and is never given out again:

    metadata                         small records, changed by compare-and-set
    t0000002a/p00003/s00000001       segment 1 of partition 3 of the topic with uid 42 (2a in hex)
    └─ uid ─┘ └ part.┘ └ segment ┘

Keys in a segment: the id of the block's LAST message without its payload half, so that a scan from
any id begins at the right block with one seek. Big-endian, unsigned.

    0   8  publish time, ms
    8   2  sequence

Keys in `metadata`, all ASCII:

    topic/{namespace}/{topic}              the topic as it is now
    generation/{namespace}/{topic}         the last generation used; survives the topic's deletion
    partition/{uid:08x}/{partition:05d}    epoch and segments
    producers/{uid:08x}/{partition:05d}    snapshot of the idempotent producers' windows
    counter/topic-uid                      the last topic uid given out
    deleted/{uid:08x}                      a deleted topic whose maps are still to be dropped
    clock/retention                        the latest time by which retention was judged, ms

Invariants

* Numbers have a fixed width, so keys and names sort like the numbers they hold.
* Namespaces and topics hold no `/`, so a prefix that ends with `/` covers exactly one topic,
  namespace or kind.
"""

import struct

import google_crc32c

METADATA_MAP = "metadata"
BLOCK_KEY_BYTES = 10
TOPIC_UID_COUNTER = b"counter/topic-uid"
DELETED_PREFIX = b"deleted/"
RETENTION_CLOCK = b"clock/retention"
TOPIC_UID_MAX = 2**32 - 1
SEGMENT_MAX = 99_999_999

_BLOCK_KEY = struct.Struct(">QH")


def block_key(time_ms: int, last_sequence: int) -> bytes:
    """The key of the block whose last message has this publish time and sequence."""
    return _BLOCK_KEY.pack(time_ms, last_sequence)


def split_block_key(key: bytes) -> tuple[int, int]:
    """Publish time and last sequence of a block key."""
    time_ms, last_sequence = _BLOCK_KEY.unpack(key)
    return time_ms, last_sequence


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of all messages with this key: CRC-32C modulo the number of partitions."""
    crc: int = google_crc32c.value(key)
    return crc % partitions


def segment_map(topic_uid: int, partition: int, segment: int) -> str:
    """The name of a segment's map."""
    assert segment <= SEGMENT_MAX, "segment numbers have 8 digits"
    return f"{partition_prefix(topic_uid, partition)}s{segment:08d}"


def partition_prefix(topic_uid: int, partition: int) -> str:
    """What the names of all maps of a partition begin with."""
    return f"{topic_prefix(topic_uid)}p{partition:05d}/"


def topic_prefix(topic_uid: int) -> str:
    """What the names of all maps of a topic's life begin with."""
    assert topic_uid <= TOPIC_UID_MAX, "topic uids have 8 hexadecimal digits"
    return f"t{topic_uid:08x}/"


def topic_key(namespace: str, topic: str) -> bytes:
    """The key of a topic's record; with an empty topic, the prefix of all of the namespace."""
    return f"topic/{namespace}/{topic}".encode("ascii")


def generation_key(namespace: str, topic: str) -> bytes:
    """The key of the record that holds a topic name's last generation."""
    return f"generation/{namespace}/{topic}".encode("ascii")


def partition_key(topic_uid: int, partition: int) -> bytes:
    """The key of a partition's record."""
    return b"partition/%08x/%05d" % (topic_uid, partition)


def producers_key(topic_uid: int, partition: int) -> bytes:
    """The key of a partition's snapshot of producers."""
    return b"producers/%08x/%05d" % (topic_uid, partition)


def deleted_key(topic_uid: int) -> bytes:
    """The key of the note that a deleted topic's maps are still to be dropped."""
    return DELETED_PREFIX + b"%08x" % topic_uid


def prefix_stop(prefix: bytes) -> bytes:
    """The end of the half-open range of all keys that begin with this ASCII prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
