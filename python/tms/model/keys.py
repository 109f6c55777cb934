"""The names of maps and records in the store, and the partitioners of message keys.

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
    access/session/{id}                    of the console; of `tms.access.sessions`
    access/peers                           of earlier versions; a service drops it
    access/changes                         number of changes of any of these

Invariants

* Numbers have a fixed width, so keys and names sort like the numbers they hold.
* Namespaces and topics hold no `/`, so a prefix that ends with `/` covers exactly one topic,
  namespace or kind.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Self

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
SESSION_PREFIX = b"access/session/"
PEER_SECRET = b"access/peers"
ACCESS_CHANGES = b"access/changes"
TOPIC_UID_MAX = 2**32 - 1
SEGMENT_MAX = 99_999_999

_DELAYED = "delayed"
_BLOCK_KEY = struct.Struct(">QH")
_PAYLOAD_KEY = struct.Struct(">QQH")
_POINTERS_PER_DAY = 86_400_000 * 1_000_000
_MURMUR_SEED = 0x9747B28C
_MURMUR = 0x5BD1E995
_LOW = 2**32 - 1
_LANE_BYTES = 8  # for the product of two numbers of 32 bits
_LANES_MIN = 8  # of keys of one length, below which one after another is as fast
_STEP_BYTES = 1 << 18  # of the keys of one step, about: what fits into a cache of the processor
_KEY_BYTES = 64  # what a lane costs beside its key, about


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


def _murmur2(key: bytes) -> int:
    """The hash of Kafka's default partitioner: MurmurHash2 of 32 bits, here without its sign."""
    hash = _MURMUR_SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[: len(key) & ~3]):
        word = word * _MURMUR & _LOW
        hash = (hash * _MURMUR ^ (word ^ word >> 24) * _MURMUR) & _LOW
    if tail := len(key) & 3:
        hash = (hash ^ int.from_bytes(key[-tail:], "little")) * _MURMUR & _LOW
    hash = (hash ^ hash >> 13) * _MURMUR & _LOW
    return (hash ^ hash >> 15) & 0x7FFF_FFFF


def _murmur2_of_each(keys: Sequence[bytes]) -> list[int]:
    """The hashes of many keys, those of one length together."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        by_length[len(key)].append(index)
    hashes = [0] * len(keys)
    for length, indexes in by_length.items():
        step = 1 + _STEP_BYTES // (length + _KEY_BYTES)
        for at in range(0, len(indexes), step):
            some = indexes[at : at + step]
            alike = [keys[index] for index in some]
            found = map(_murmur2, alike) if len(alike) < _LANES_MIN else _murmur2_in_lanes(alike)
            for index, hash in zip(some, found, strict=True):
                hashes[index] = hash
    return hashes


def _murmur2_in_lanes(keys: Sequence[bytes]) -> list[int]:
    """The hashes of keys of one length, one beside the other in the lanes of long integers: each
    step of the loop is one for all keys."""
    count = len(keys)
    length = len(keys[0])
    joined = b"".join(keys)
    each = int.from_bytes(b"\1".ljust(_LANE_BYTES, b"\0") * count, "little")  # 1 in every lane
    low = each * _LOW

    def words(start: int, stop: int) -> int:
        lanes = bytearray(_LANE_BYTES * count)
        for at in range(start, stop):
            lanes[at - start :: _LANE_BYTES] = joined[at::length]
        return int.from_bytes(lanes, "little")

    hash = each * (_MURMUR_SEED ^ length)
    whole = length & ~3
    for at in range(0, whole, 4):
        word = words(at, at + 4) * _MURMUR & low
        hash = (hash * _MURMUR ^ (word ^ word >> 24 & each * 0xFF) * _MURMUR) & low
    if length & 3:
        hash = (hash ^ words(whole, length)) * _MURMUR & low
    hash = (hash ^ hash >> 13 & each * (_LOW >> 13)) * _MURMUR & low
    hash = (hash ^ hash >> 15 & each * (_LOW >> 15)) & each * 0x7FFF_FFFF
    found = hash.to_bytes(_LANE_BYTES * count, "little")
    return list(struct.unpack(f"<{count}Q", found))


def _crc32c_of_each(keys: Sequence[bytes]) -> list[int]:
    return list(map(google_crc32c.value, keys))


HashOf = Callable[[bytes], int]
HashesOf = Callable[[Sequence[bytes]], list[int]]


class Partitioner(StrEnum):
    """The rule by which the key of a message selects its partition: a hash of the key modulo the
    number of partitions. A topic has one from its creation on, and every publisher obeys it.

    `hash_of` is the function for one key, `hashes_of` the faster one for many.
    """

    CRC32C = "crc32c", google_crc32c.value, _crc32c_of_each
    MURMUR2 = "murmur2", _murmur2, _murmur2_of_each  # that of Kafka's clients

    def __new__(cls, text: str, hash_of: HashOf, hashes_of: HashesOf) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text
        return member

    def __init__(self, text: str, hash_of: HashOf, hashes_of: HashesOf) -> None:
        self.hash_of = hash_of
        self.hashes_of = hashes_of

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition of all messages with this key, 0 to `partitions` - 1."""
        return self.hash_of(key) % partitions

    def partitions_of(self, keys: Sequence[bytes], partitions: int) -> list[int]:
        """The partitions of the messages with these keys."""
        return [hash % partitions for hash in self.hashes_of(keys)]


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
