"""The test vectors in `vectors/`: read here and by the Java side, so the two cannot drift apart.

`python -m tests.vectors_kit` writes the files anew. Do this after adding a case; a changed case
means that stored bytes change, which needs a decision record and a format version.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.block_kit import LIMITS, batch_of, block_of, body_of, with_right_crc
from tests.hbase_cases import hbase
from tests.snapshot_cases import snapshots
from tms.block import Compression, count_messages, encode, place, read_header, thin
from tms.model import keys
from tms.model.ids import TIME_MS_MAX, MessageId
from tms.model.topic import TopicName, parse_cleanup, parse_retention

VECTORS = Path(__file__).resolve().parents[2] / "vectors"

Row = tuple[bytes | None, bytes | None, dict[str, bytes | None]]
Times = list[int | None]


@cache
def load(name: str) -> dict[str, Any]:
    """The committed vectors."""
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return found


def ids() -> dict[str, Any]:
    """Message ids."""
    cases = [
        MessageId(0, 0),
        MessageId(0, 0, 0, 1),
        MessageId(0, 65_535),
        MessageId(1_700_000_000_000, 0),
        MessageId(1_700_000_000_000, 1),
        MessageId(1_700_000_000_000, 1, 1_699_999_999_000, 7),
        MessageId(1_700_000_000_000, 256),
        MessageId(1_700_000_000_001, 0),
        MessageId(TIME_MS_MAX, 65_535, TIME_MS_MAX, 65_535),
    ]
    return {
        "about": "Message ids, ascending. `hex` is the text of an id and its 20 bytes.",
        "ids": [{**id._asdict(), "hex": str(id)} for id in cases],
        "refused": {
            "no digits": "",
            "39 digits": "0" * 39,
            "41 digits": "0" * 41,
            "a letter": "g" + "0" * 39,
            "blanks": " " * 40,
            "a sign": "+" + "0" * 39,
            "digits of another script": "\u0660" * 40,
            "the year 10000": str(MessageId(TIME_MS_MAX + 1, 0)),
        },
    }


def names_and_keys() -> dict[str, Any]:
    """Block keys, the partition of a key, names of maps, keys of metadata."""
    block_keys = [(0, 0), (0, 65_535), (1_700_000_000_000, 255), (1_700_000_000_000, 256)]
    message_keys = [b"", b"AA", b"key", b"\x00", b"\xff" * 20, "Zürich".encode(), b"x" * 1_000]
    of_kafka = [b"21", b"abc", b"foobar", b"a-little-bit-long-string"]
    of_kafka += [b"a-little-bit-longer-string", b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"]
    counts = (1, 2, 4, 7, 1_024)
    crc32c, murmur2 = keys.Partitioner
    return {
        "about": "Keys of blocks (ascending), partitions of keys by CRC-32C and by Kafka's murmur2,"
        " names of maps, metadata keys.",
        "block_keys": [
            {"time_ms": time_ms, "last_sequence": last, "hex": keys.block_key(time_ms, last).hex()}
            for time_ms, last in block_keys
        ],
        "partitions": [
            {"key": key.hex(), "of": {str(n): crc32c.partition_of(key, n) for n in counts}}
            for key in message_keys
        ],
        "partitions_murmur2": [
            {"key": key.hex(), "of": {str(n): murmur2.partition_of(key, n) for n in counts}}
            for key in message_keys + of_kafka
        ],
        "maps": [
            {
                "topic_uid": uid,
                "partition": partition,
                "segment": segment,
                "name": keys.segment_map(uid, partition, segment),
            }
            for uid, partition, segment in [(42, 3, 1), (0, 0, 0), (2**32 - 1, 1_023, 99_999_999)]
        ],
        "metadata": {
            "map": keys.METADATA_MAP,
            "topic default:flights": keys.topic_key("default", "flights").decode(),
            "all topics of default": keys.topic_key("default", "").decode(),
            "generation of default:flights": keys.generation_key("default", "flights").decode(),
            "partition 3 of uid 42": keys.partition_key(42, 3).decode(),
            "producers of partition 3 of uid 42": keys.producers_key(42, 3).decode(),
            "deleted uid 42": keys.deleted_key(42).decode(),
            "last topic uid": keys.TOPIC_UID_COUNTER.decode(),
            "retention clock": keys.RETENTION_CLOCK.decode(),
        },
    }


def topics() -> dict[str, Any]:
    """Names of topics and spellings of retention."""
    names = ["flights", "default:flights", "analytics:click-stream", "A_1:_", "a:b--", "9:9"]
    names += [
        "shop.orders-v1_eu",
        "__consumer_offsets",
        "_schemas",
        "a:server.schema.table",
        "a..b.",
    ]
    names += ["n" * 128 + ":" + "t" * 249]
    cleanups = ["delete", "compact", "compact,delete", "delete, compact"]
    retentions = [
        "14d",
        "36h",
        "1s",
        "1000ms",
        "1000",
        "1.5d",
        "2w",
        "90m",
        " 14d ",
        "36525d",
        "forever",
    ]
    return {
        "about": "Names of topics, how long their messages are kept (null is forever), and what"
        " becomes of older ones.",
        "names": [
            {"text": text, **TopicName.parse(text)._asdict(), "short": str(TopicName.parse(text))}
            for text in names
        ],
        "refused_names": [
            *[
                "",
                ":",
                "a:",
                ":a",
                "a:b:c",
                "-a",
                "a b",
                "a/b",
                ".",
                "..",
                ".a",
                "a:.b",
                "a.b:c",
                "a.b:c.d",
                "a./b",
                "ä",
                "a\n",
                "a\x00",
                "a-b:c",
            ],
            *["n" * 129 + ":t", "n:" + "t" * 250, "\u0661"],
        ],
        "retentions": [{"text": text, "ms": parse_retention(text)} for text in retentions],
        "cleanups": {text: parse_cleanup(text) for text in cleanups},
        "refused_cleanups": ["", "keep", "COMPACT", "compact,", "compact,compact"],
        "refused_retentions": [
            "",
            "0",
            "999ms",
            "-1d",
            "1y",
            "d",
            "36526d",
            "14 d",
            "1" * 30,
        ],
    }


ONE: list[Row] = [(None, b"hello", {})]
NINE: list[Row] = [
    (b"AA", b"first", {}),
    (b"AA", None, {}),
    (None, b"", {}),
    (b"", b"after empty ones", {"name": b"text"}),
    (b"\x00\xff", bytes(range(32)), {"name": b"", "größe": b"\x00\x01"}),
    (None, None, {}),
    (b"B6", b"seventh", {}),
    (b"B6", b"eighth", {"a": b"1", "b": b"2", "c": b"3"}),
    (b"B6", b"ninth", {}),
]
NULL_HEADERS: list[Row] = [
    (b"k", b"first", {"set": b"1", "null": None, "empty": b""}),
    (None, b"second", {}),
    (None, None, {"null": None}),
]
TIME = 1_700_000_000_000
TIMES: Times = [TIME + 5, None, TIME, 0, TIME_MS_MAX, 1, TIME, None, TIME]
LZ4 = Compression.LZ4
MANY: list[Row] = [(b"key %d" % (i % 3), b"the value of message %d" % i, {}) for i in range(40)]


def blocks() -> dict[str, Any]:
    """Whole blocks and their contents."""
    lone = encode([b"hello"])
    placed = encode([b"hello"], producer_id=2**62 + 1, producer_sequence=7)
    place(placed, 1_000_000)
    counted = encode([b"hello"])
    count_messages(counted, 2**47 - 1, 2**15 - 1, 2**31 - 1)
    return {
        "about": "Whole blocks in hexadecimal and their messages. `canonical` blocks are what a"
        " producer of TMS makes of them, byte by byte; the others are to be read all the same."
        " `sparse` blocks lack messages: `index` says which of the header's count are left.",
        "limits": LIMITS,
        "blocks": [
            _block("one value", ONE, lone, True),
            _block("one value, stored at an offset", ONE, placed, True),
            _block("a sequence that counts messages", ONE, counted, True),
            _block("nulls, empty cells and headers", NINE, _encoded(NINE), True),
            _block("forty messages", MANY, _encoded(MANY), True),
            _block("small buffers, not worth LZ4", ONE, _encoded(ONE, Compression.LZ4), True),
            _block("LZ4", MANY, _encoded(MANY, Compression.LZ4), False),
            _block("ZSTD", MANY, _encoded(MANY, Compression.ZSTD), False),
            _block("null maps of headers", NINE, _foreign(NINE, None), False),
            _block("another flatbuffer layout", NINE, _foreign(NINE, {"a": "b"}), False),
            _block("headers without a value", NULL_HEADERS, _encoded(NULL_HEADERS), True),
            _block("one event time", ONE, _encoded(ONE, times=[TIME]), True, [TIME]),
            _block(
                "one event time for all", NINE, _encoded(NINE, times=[TIME] * 9), True, [TIME] * 9
            ),
            _block("event times", NINE, _encoded(NINE, times=TIMES), True, TIMES),
            _block(
                "event times, LZ4", MANY, _encoded(MANY, LZ4, [*range(40)]), False, [*range(40)]
            ),
        ],
        "sparse": [
            _sparse("the last of nine is left", NINE, [8]),
            _sparse("four of nine are left", NINE, [0, 3, 4, 7]),
            _sparse("every third of forty is left", MANY, list(range(0, 40, 3))),
            _sparse("two of nine with event times are left", NINE, [2, 5], TIMES),
            _sparse("no event time is left", NINE, [1, 7], TIMES),
        ],
        "refused": [
            _refused("bad-block", "a sparse block", thin(_encoded(NINE), [1, 2])),
            _refused("bad-block", "another magic", _changed(lone, 0, b"TMSX")),
            _refused("bad-block", "a later format version", _changed(lone, 4, b"\x02")),
            _refused("bad-block", "flags that only the service sets", _changed(lone, 5, b"\x01")),
            _refused(
                "bad-block", "a sequence of messages without producer", _changed(lone, 5, b" ")
            ),
            _refused("bad-block", "a sequence of 2^31", _changed(counted, 40, b"\x80")),
            _refused("bad-block", "a producer number of 2^47", _changed(counted, 32, b"\x80")),
            _refused("bad-block", "reserved bytes that are not zero", _changed(lone, 7, b"\x01")),
            _refused("bad-block", "no messages", _changed(lone, 8, bytes(4))),
            _refused("bad-block", "more messages than the body has", _changed(lone, 11, b"\x02")),
            _refused("crc-mismatch", "a flipped bit in the body", _changed(lone, 504, b"H")),
            _refused("bad-block", "a body cut off", with_right_crc(lone[:-8])),
            _refused("bad-block", "bytes after the body", with_right_crc(lone + bytes(8))),
            _refused("bad-block", "no body", with_right_crc(lone[:48])),
            _refused(
                "bad-block",
                "a value that ends outside of its column",
                with_right_crc(_changed(lone, 500, b"\x06")),
            ),
            *_refused_times(),
            _refused(
                "decompressed-too-large",
                "16 MiB in 1 KiB",
                block_of(body_of(batch_of([bytes(16 << 20)]), "zstd"), 1),
            ),
        ],
    }


def _refused_times() -> list[dict[str, Any]]:
    """Blocks with event times that contradict the block or each other."""
    timed = _encoded(NINE, times=TIMES)
    shared = _encoded(NINE, times=[TIME] * 9)

    def wrong(name: str, error: str, block: bytearray) -> dict[str, Any]:
        return _refused(error, name, with_right_crc(block))

    return [
        wrong("event times without a body", "bad-block", timed[:136]),
        wrong("event times that end early", "bad-block", timed[:52]),
        wrong("more event times than messages", "bad-block", _changed(timed, 48, b"\x0a")),
        wrong("more null times than messages", "bad-block", _changed(shared, 52, b"\x01")),
        wrong("another number of null times", "bad-block", _changed(timed, 52, b"\x01")),
        wrong("another latest time", "bad-block", _changed(timed, 56, b"\x01")),
        wrong("a negative event time", "invalid", _changed(timed, 64, b"\xfe" + b"\xff" * 7)),
        wrong("no event time for all", "bad-block", _changed(shared, 56, b"\xff" * 8)),
        wrong("an event time in the year 10000", "invalid", _changed(shared, 60, b"\x80\xe6\0\0")),
        wrong("event times in version 1", "bad-block", _changed(timed, 4, b"\x01")),
    ]


def _sparse(
    name: str, rows: list[Row], index: list[int], times: Times | None = None
) -> dict[str, Any]:
    """The rest of a block of these messages, stored at an offset; canonical."""
    whole = _encoded(rows, times=times)
    place(whole, 1_000, 17, 2**60)
    left_times = times and [times[at] for at in index]
    left = _block(name, [rows[at] for at in index], thin(whole, index), True, left_times)
    return {"name": name, "index": index, **left}


def _encoded(
    rows: list[Row], compression: Compression = Compression.NONE, times: Times | None = None
) -> bytearray:
    message_keys, values, headers = zip(*rows, strict=True)
    return encode(values, message_keys, headers, times, compression=compression)


def _foreign(rows: list[Row], custom: dict[str, str] | None) -> bytearray:
    message_keys, values, headers = zip(*rows, strict=True)
    maps = headers if custom else [row or None for row in headers]
    return block_of(body_of(batch_of(values, message_keys, maps), None, custom), len(rows))


def _changed(block: bytearray, at: int, to: bytes) -> bytearray:
    return block[:at] + to + block[at + len(to) :]


def _block(
    name: str, rows: list[Row], block: bytearray, canonical: bool, times: Times | None = None
) -> dict[str, Any]:
    compression = next((c for c in Compression if c in name.lower()), Compression.NONE)
    header = structs.asdict(read_header(block))
    assert header.pop("has_times") == any(time is not None for time in times or ())
    messages = [
        {
            "key": None if key is None else key.hex(),
            "value": None if value is None else value.hex(),
            "headers": {n: None if text is None else text.hex() for n, text in headers.items()},
        }
        for key, value, headers in rows
    ]
    for message, time in zip(messages, times or (), strict=times is not None):
        message["event_time_ms"] = time
    return {
        "name": name,
        "canonical": canonical,
        "compression": compression,
        "header": header,
        "messages": messages,
        "block": block.hex(),
    }


def _refused(error: str, name: str, block: bytearray) -> dict[str, Any]:
    return {"name": name, "error": error, "block": block.hex()}


MAKERS = {
    "ids": ids,
    "keys": names_and_keys,
    "topics": topics,
    "blocks": blocks,
    "hbase": hbase,
    "snapshots": snapshots,
}


def text_of(name: str) -> str:
    """The text of this file of vectors."""
    return json.dumps(MAKERS[name](), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    for made in MAKERS:
        (VECTORS / f"{made}.json").write_text(text_of(made))
