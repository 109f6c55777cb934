"""The names of maps and records in the store, and the partition of a message key.

Maps, which the store opens by name; a uid names one generation of a topic and is never used again:

    metadata                         small records, changed by compare-and-set
    t0000002a/p00003/s00000001       segment 1 of partition 3 of the topic with uid 42 (2a in hex)
    └─ uid ─┘ └ part.┘ └ segment ┘
    t0000002a/p00003/y00019675       staged blocks of transactions from day 19,675 since 1970
    t0000002a/delayed                delayed messages; `tms.delayed.entries` has the keys
    k/stock                          the table `stock`; `tms.transactions.versions` has the keys

Keys in a segment: the id of the block's LAST message without its payload half, so that a scan from
any id begins at the right block with one seek. Big-endian, unsigned.

    0   8  publish time, ms
    8   2  sequence

Keys in a map of staged blocks:

    0   8  write pointer
    8   8  payload time, ms
    16  2  payload sequence of the block's last message

Keys in `metadata`, all ASCII:

    topic/{namespace}/{topic}              the topic as it is now
    generation/{namespace}/{topic}         the last generation used; survives the topic's deletion
    partition/{uid:08x}/{partition:05d}    epoch and segments
    producers/{uid:08x}/{partition:05d}    snapshot of the idempotent producers' windows
    forgotten/{uid:08x}/{partition:05d}/{page}
                                           producers that were pushed out of their window
    compaction/{uid:08x}/{partition:05d}   progress of a partition's compaction, remaining work
    journal/{uid:08x}[/{partition:05d}]    id at which a partition of an internal topic is replayed;
                                           the first one without its number
    counter/topic-uid                      the last topic uid used
    counter/producer                       the first producer number that is not reserved
    deleted/{uid:08x}                      a deleted topic whose maps are still to be dropped
    clock/retention                        the latest retention time, ms
    retention/default                      retention of topics without their own, ms; in stores that
                                           others clean
    transactions/image                     outcomes of transactions (`model.transaction_image`)
    owner                                  process that owns the store (`tms.cluster.ownership`)
    instance/{id}                          an instance of a cluster (`tms.cluster.fence`)
    cluster/pins                           partitions whose owner an operator has chosen
    shards                                 number of shards (`tms.topics.sharding`)
    access/token/{id}                      a token; this and the next are of `tms.access.records`
    access/grant/{principal}/{verb}/{pattern}
    access/quota/{principal}
    access/peers                           of earlier versions; a service drops it
    access/changes                         number of changes of any of these

Invariants

* Numbers have a fixed width, so keys and names sort like the numbers they hold.
* Namespaces and topics hold no `/`, so a prefix that ends with `/` covers exactly one topic,
  namespace or kind.
"""

import struct
from collections.abc import Callable, Iterable

import google_crc32c

METADATA_MAP = "metadata"
TABLES = "k/"  # prefix of the names of maps of tables
BLOCK_KEY_BYTES = 10
TOPIC_UID_COUNTER = b"counter/topic-uid"
PRODUCER_COUNTER = b"counter/producer"
DELETED_PREFIX = b"deleted/"
PARTITION_PREFIX = b"partition/"
COMPACTION_PREFIX = b"compaction/"
RETENTION_CLOCK = b"clock/retention"
RETENTION_DEFAULT = b"retention/default"
TRANSACTIONS_IMAGE = b"transactions/image"
OWNER = b"owner"
INSTANCE_PREFIX = b"instance/"
INSTANCE_NUMBER_PREFIX = b"instance-number/"
PINS = b"cluster/pins"
SHARDS = b"shards"
KAFKA_CLUSTER_ID = b"kafka/cluster-id"
TOKEN_PREFIX = b"access/token/"
GRANT_PREFIX = b"access/grant/"
QUOTA_PREFIX = b"access/quota/"
PEER_SECRET = b"access/peers"
ACCESS_CHANGES = b"access/changes"
TOPIC_UID_MAX = 2**32 - 1
SEGMENT_MAX = 99_999_999

_DELAYED = "delayed"
_BLOCK_KEY = struct.Struct(">QH")
_PAYLOAD_KEY = struct.Struct(">QQH")
_POINTERS_PER_DAY = 86_400_000 * 1_000_000


# The key of the block whose last message has this publish time and sequence.
block_key: Callable[[int, int], bytes] = _BLOCK_KEY.pack
# Publish time and last sequence of a block key.
split_block_key: Callable[[bytes], tuple[int, int]] = _BLOCK_KEY.unpack
# The key of a staged block: write pointer, payload time and last sequence; and the inverse.
payload_key: Callable[[int, int, int], bytes] = _PAYLOAD_KEY.pack
split_payload_key: Callable[[bytes], tuple[int, int, int]] = _PAYLOAD_KEY.unpack


def payload_map(topic_uid: int, partition: int, pointer: int) -> str:
    """The name of the map of a partition's blocks that a transaction staged."""
    return f"{payload_prefix(topic_uid, partition)}{pointer // _POINTERS_PER_DAY:08d}"


def payload_prefix(topic_uid: int, partition: int) -> str:
    """The prefix of the names of all maps of staged blocks of a partition."""
    return f"{partition_prefix(topic_uid, partition)}y"


def payload_place(name: str) -> tuple[int, int]:
    """Topic uid and partition of a map of staged blocks."""
    uid, partition, _ = name.split("/")
    return int(uid[1:], 16), int(partition[1:])


def is_payload_map(name: str) -> bool:
    """True if this is the name of a map of staged blocks."""
    return name.startswith("t") and "/y" in name


def delayed_map(topic_uid: int) -> str:
    """The name of the map of a topic's delayed messages."""
    return f"{topic_prefix(topic_uid)}{_DELAYED}"


def is_delayed_map(name: str) -> bool:
    """True if this is the name of a map of delayed messages."""
    return name.startswith("t") and name.endswith(f"/{_DELAYED}")


def topic_of_map(name: str) -> int:
    """The topic uid of a map of a topic."""
    return int(name.partition("/")[0][1:], 16)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of all messages with this key: CRC-32C modulo the number of partitions."""
    crc: int = google_crc32c.value(key)
    return crc % partitions


def partitions_for_keys(keys: Iterable[bytes], partitions: int) -> list[int]:
    """The partitions of the messages with these keys."""
    return [crc % partitions for crc in map(google_crc32c.value, keys)]


def segment_map(topic_uid: int, partition: int, segment: int) -> str:
    """The name of a segment's map."""
    assert segment <= SEGMENT_MAX, "segment numbers have 8 digits"
    return f"{partition_prefix(topic_uid, partition)}s{segment:08d}"


def partition_prefix(topic_uid: int, partition: int) -> str:
    """The prefix of the names of all maps of a partition."""
    return f"{topic_prefix(topic_uid)}p{partition:05d}/"


def topic_prefix(topic_uid: int) -> str:
    """The prefix of the names of all maps of a topic's generation."""
    assert topic_uid <= TOPIC_UID_MAX, "topic uids have 8 hexadecimal digits"
    return f"t{topic_uid:08x}/"


def topic_key(namespace: str, topic: str) -> bytes:
    """The key of a topic's record; with an empty topic, the prefix of all records of the
    namespace."""
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


def forgotten_key(topic_uid: int, partition: int, page: str) -> bytes:
    """The key of a page of a partition's forgotten producers; without a name, the prefix of all of
    them."""
    return b"forgotten/%08x/%05d/%s" % (topic_uid, partition, page.encode("ascii"))


def compaction_key(topic_uid: int, partition: int) -> bytes:
    """The key of the record of a partition's compaction."""
    return b"compaction/%08x/%05d" % (topic_uid, partition)


def journal_key(topic_uid: int, partition: int) -> bytes:
    """The key of the record of the id at which a partition of an internal topic is replayed."""
    key = b"journal/%08x" % topic_uid
    return b"%b/%05d" % (key, partition) if partition else key


def deleted_key(topic_uid: int) -> bytes:
    """The key of the record that a deleted topic's maps are still to be dropped."""
    return DELETED_PREFIX + b"%08x" % topic_uid


def instance_number_key(number: int) -> bytes:
    """The key that has the id of the instance with this number."""
    return INSTANCE_NUMBER_PREFIX + b"%010d" % number


def prefix_stop(prefix: bytes) -> bytes:
    """The end of the half-open range of all keys that begin with this ASCII prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
