"""The contract of the tables in HBase in plain Python: rows, and their outcomes. The Java
coprocessor must agree with every line; `vectors/hbase.json` is made from this.

    messages  salt 4 · uid 8 · partition 4 · segment 8 · publish time 16 · last sequence 4
    payloads  salt 4 · uid 8 · partition 4 · day 8 · write pointer 16 · payload time 16 · sequence 4

Digits are lower-case hexadecimal. The code is written for comparison, not for speed: it reads the
records anew for every question.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import google_crc32c
import msgspec

from tms.block import Flags, encode, place, read_header
from tms.block.header import HEADER_BYTES
from tms.errors import BadBlock
from tms.log.records import PartitionRecord, SegmentRecord
from tms.model.snapshot import POINTER_MAX, POINTERS_PER_MS, Snapshot
from tms.model.topic import Durability
from tms.model.transaction_image import InProgress, TransactionImage, encode_image
from tms.topics.registry import TopicRecord

NOW = 1_700_000_000_000
DAY = 86_400_000
PLAIN, TX, MINE = 0, Flags.TRANSACTIONAL, Flags.TRANSACTIONAL | Flags.ISSUED
BACK = Flags.ROLLED_BACK
POINTERS_PER_DAY = DAY * POINTERS_PER_MS
SEGMENT_MAX = 99_999_999
TRANSACTION_MS = 26 * 3_600_000
DROPS = {"deleted", "expired", "floor", "sealed", "rolled_back", "invalid", "orphan"}


def salt(uid: int, partition: int) -> int:
    """The prefix of a partition's rows."""
    crc: int = google_crc32c.value(struct.pack(">IH", uid, partition))
    return crc >> 16


def message_row(uid: int, partition: int, segment: int, time_ms: int, sequence: int) -> str:
    """The row of a block of messages."""
    head = f"{salt(uid, partition):04x}{uid:08x}{partition:04x}"
    return f"{head}{segment:08x}{time_ms:016x}{sequence:04x}"


def payload_row(uid: int, partition: int, pointer: int, time_ms: int, sequence: int) -> str:
    """The row of a staged block."""
    head = f"{salt(uid, partition):04x}{uid:08x}{partition:04x}"
    day = pointer // POINTERS_PER_DAY
    return f"{head}{day:08x}{pointer:016x}{time_ms:016x}{sequence:04x}"


@dataclass(frozen=True)
class Key:
    """The fields of a row's key. `segment` is the day, in payloads."""

    uid: int
    partition: int
    segment: int
    time_ms: int
    sequence: int
    pointer: int | None = None


def read_row(table: str, row: str) -> Key | None:
    """The key, or None if the row is not of this table."""
    width = 60 if table == "payloads" else 44
    if len(row) != width or not set(row) <= set("0123456789abcdef"):
        return None
    uid, partition, middle = int(row[4:12], 16), int(row[12:16], 16), int(row[16:24], 16)
    if int(row[:4], 16) != salt(uid, partition):
        return None
    if table == "payloads":
        pointer, time_ms = int(row[24:40], 16), int(row[40:56], 16)
        if max(pointer, time_ms) > POINTER_MAX or middle != pointer // POINTERS_PER_DAY:
            return None
        return Key(uid, partition, middle, time_ms, int(row[56:], 16), pointer)
    time_ms = int(row[24:40], 16)
    if time_ms > POINTER_MAX or middle > SEGMENT_MAX:
        return None
    return Key(uid, partition, middle, time_ms, int(row[40:], 16))


@dataclass(frozen=True)
class Store:
    """The records in the table `metadata`; None for them: never read."""

    wall_ms: int
    ttl_ms: int | None = None
    records: Mapping[str, str] | None = field(default_factory=dict)
    image: TransactionImage | None = None

    def judge(self, table: str, row: str, block: bytes) -> str:
        """The outcome for the row in a flush or compaction: `kept`, `unsure`, `damaged`, or the
        reason to drop it."""
        key = read_row(table, row)
        try:
            header = read_header(block)
        except BadBlock:
            return "damaged"
        pointer = header.write_pointer
        if key is None or pointer > POINTER_MAX or key.pointer not in (None, pointer):
            return "damaged"
        if self.records is None or self._is_unsure(key):
            return "unsure"
        transactional = bool(header.flags & Flags.TRANSACTIONAL)
        for reason, holds in self._rules(table, key, transactional, header.flags, pointer):
            if holds:
                return reason
        return "kept"

    def dropped(self, table: str, row: str, block: bytes) -> bool:
        """True if a flush or compaction leaves the row out: of an open segment nothing is, because
        its owner takes the first gap for the end."""
        reason = self.judge(table, row, block)
        if reason not in DROPS or table == "payloads" or reason in ("deleted", "orphan"):
            return reason in DROPS
        key = read_row(table, row)
        assert key is not None
        record = self._partition(key)
        return record is not None and _is_settled(record, key)

    def _rules(
        self, table: str, key: Key, transactional: bool, flags: int, pointer: int
    ) -> Iterator[tuple[str, bool]]:
        messages = table == "messages"
        topic, now_ms = self._live.get(key.uid), self._now_ms
        age_ms = key.time_ms if messages else pointer // POINTERS_PER_MS + TRANSACTION_MS
        retention_ms = topic and self._retention_ms(topic)
        yield "deleted", topic is None and key.uid in self._noted
        yield (
            "expired",
            now_ms is not None and retention_ms is not None and age_ms < now_ms - retention_ms,
        )
        if messages:
            record = self._partition(key)
            yield "floor", record is not None and _at(key) < _floor(record)
            yield "sealed", record is not None and _is_sealed(record, key)
            yield "rolled_back", transactional and bool(flags & Flags.ROLLED_BACK)
        yield (
            "invalid",
            transactional and bool(flags & Flags.ISSUED) and self._never_commits(pointer),
        )
        orphan = topic is None and key.uid not in self._noted
        old = now_ms is not None and self.ttl_ms is not None and age_ms < now_ms - self.ttl_ms
        yield "orphan", orphan and old

    def committed(self, row: str, block: bytes) -> bool | None:
        """True if a committed reader gets the row; None: it cannot be decided, and the read
        fails."""
        if self.records is None or self.image is None:
            return None
        reason = self.judge("messages", row, block)
        if reason == "damaged" or reason in DROPS - {"orphan"}:
            return False
        header = read_header(block)
        if not header.flags & Flags.TRANSACTIONAL:
            return True
        if header.flags & Flags.ROLLED_BACK or not header.flags & Flags.ISSUED:
            return False
        return self._seen.is_visible(header.write_pointer)

    @cached_property
    def _topics(self) -> tuple[list[dict[str, Any]], bool]:
        found, whole = [], True
        for key, text in (self.records or {}).items():
            if key.startswith("metadata:topic/"):
                topic = _object(text)
                uid = None if topic is None else topic.get("uid")
                if topic is None or type(uid) is not int or not 0 <= uid < 2**32:
                    whole = False
                else:
                    found.append(topic)
        return found, whole

    @cached_property
    def _live(self) -> dict[int, dict[str, Any]]:
        return {topic["uid"]: topic for topic in self._topics[0]}

    @cached_property
    def _noted(self) -> set[int]:
        prefix = "metadata:deleted/"
        return {int(key[len(prefix) :], 16) for key in self.records or {} if key.startswith(prefix)}

    @cached_property
    def _now_ms(self) -> int | None:
        clock = (self.records or {}).get("metadata:clock/retention")
        return None if clock is None else min(int(clock), self.wall_ms)

    @cached_property
    def _seen(self) -> Snapshot:
        assert self.image is not None
        return Snapshot(
            -1,
            self.image.read_pointer,
            self.image.invalid,
            tuple(sorted(in_progress(self.image))),
            write_pointer=-1,
        )

    def _never_commits(self, pointer: int) -> bool:
        image = self.image
        return (
            image is not None
            and pointer <= image.write_pointer
            and (pointer in image.invalid or any(a <= pointer < b for a, b in image.lost))
            and pointer not in in_progress(image)
        )

    def _is_unsure(self, key: Key) -> bool:
        topics, whole = self._topics
        same = [topic for topic in topics if topic["uid"] == key.uid]
        if not same:
            topic_unsure = not whole
        else:
            retention = same[0].get("retention_ms", "missing")
            good = retention is None or (type(retention) is int and retention > 0)
            said = type(same[0].get("retention_is_default", False)) is bool
            topic_unsure = len(same) > 1 or not good or not said
        record = self._partition(key)
        return topic_unsure or (record is not None and not _is_partition(record))

    def _retention_ms(self, topic: dict[str, Any]) -> int | None:
        """A topic's own retention, or the longer of TMS's default and that of the table."""
        if not topic.get("retention_is_default", False):
            return topic["retention_ms"]  # type: ignore[no-any-return]
        noted = (self.records or {}).get("metadata:retention/default")
        return None if noted is None else max(int(noted), self.ttl_ms or 0)

    def _partition(self, key: Key) -> dict[str, Any] | None:
        name = f"metadata:partition/{key.uid:08x}/{key.partition:05d}"
        text = (self.records or {}).get(name)
        return None if text is None else _object(text) or {}


def in_progress(image: TransactionImage) -> set[int]:
    """All pointers in progress, checkpoints too."""
    return {pointer for one in image.in_progress for pointer in (one.pointer, *one.checkpoints)}


def rows_of(store: Store) -> dict[str, str]:
    """The rows of the table `metadata`, values in hex."""
    rows = {key: text.encode().hex() for key, text in (store.records or {}).items()}
    if store.image is not None:
        rows["metadata:transactions/image"] = encode_image(store.image).hex()
    return rows


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_key(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(one) is int and one >= 0 for one in value) and value[1] <= 65_535


def _is_partition(record: dict[str, Any]) -> bool:
    segments = record.get("segments")
    if not isinstance(segments, list) or not _is_key(record.get("floor", [0, 0])):
        return False
    for one in segments:
        if not isinstance(one, dict) or type(one.get("number")) is not int or one["number"] < 0:
            return False
        if one.get("last") is not None and not _is_key(one["last"]):
            return False
    numbers = [one["number"] for one in segments]
    return numbers == sorted(set(numbers))


def _at(key: Key) -> tuple[int, int]:
    return key.time_ms, key.sequence


def _floor(record: dict[str, Any]) -> tuple[int, int]:
    time_ms, sequence = record.get("floor", [0, 0])
    return time_ms, sequence


def _is_sealed(record: dict[str, Any], key: Key) -> bool:
    segments = {one["number"]: one for one in record["segments"]}
    if key.segment not in segments:
        return bool(segments) and key.segment < max(segments)
    last = segments[key.segment].get("last")
    return last is not None and _at(key) > tuple(last)


def _is_settled(record: dict[str, Any], key: Key) -> bool:
    segments = {one["number"]: one for one in record["segments"]}
    if key.segment not in segments:
        return bool(segments) and key.segment < max(segments)
    return segments[key.segment].get("last") is not None


def header(flags: int = PLAIN, pointer: int = 0) -> bytes:
    """The first bytes of a block."""
    block = encode([b"hello"])
    place(block, 0, flags, pointer)
    return bytes(block[:HEADER_BYTES])


def pointer(days_ago: float, counter: int = 0) -> int:
    """The write pointer of a transaction that began then."""
    return (NOW - int(days_ago * DAY)) * POINTERS_PER_MS + counter


def topic(uid: int, retention_ms: int | None, is_default: bool = False) -> str:
    """A topic's record; `is_default`: it has no retention of its own."""
    record = TopicRecord(uid, 1, NOW - 90 * DAY, 4, retention_ms, None, Durability.SYNCED, 8 << 20)
    record = msgspec.structs.replace(record, retention_is_default=is_default)
    return msgspec.json.encode(record).decode()


def partition(
    *segments: tuple[int, tuple[int, int] | None], floor: tuple[int, int] = (0, 0)
) -> str:
    """A partition's record with segments of these numbers and ends."""
    made = tuple(
        SegmentRecord(number, 1, NOW - 90 * DAY, 0, None if last is None else 9, last)
        for number, last in segments
    )
    return msgspec.json.encode(PartitionRecord(3, made, floor, (0, 0))).decode()


def image(
    invalid: tuple[int, ...] = (),
    open: tuple[InProgress, ...] = (),
    read_days_ago: float = 0.1,
    lost: tuple[tuple[int, int], ...] = (),
) -> TransactionImage:
    """The transactions now."""
    read, last = pointer(read_days_ago), pointer(0.05)
    return TransactionImage(NOW - 5_000, read, last, invalid, open, lost=lost)
