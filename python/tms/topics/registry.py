"""The topics of a store and their settings; creating, changing and deleting topics.

Invariants

* A topic exists exactly while its record does: writing the record creates it, removing the record
  deletes it, each in one compare-and-set. A crash before or after leaves a whole topic or none.
* A uid names the maps of one generation of a topic and is never used twice, so a re-created topic
  can never show messages of an older one. `generation` counts them.
* In a store that others may write to, a topic's record is removed first, then those of its
  partitions, and then the deletion is acknowledged: by then every writer of a partition is refused.
  Cached records are compared with the store now and then (`refresh`), and at once when a
  partition's record is missing (`require_life`).
* The maps of a deleted topic are listed under `deleted/` before its record is removed, and dropped
  afterwards, by the cleaner or the next start if need be.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop
from itertools import chain, groupby, islice
from typing import Any, TypeVar

import msgspec

from tms.errors import (
    Conflict,
    FewerPartitions,
    Invalid,
    StorageUnavailable,
    TMSError,
    TopicExists,
    TopicNotFound,
)
from tms.log.records import decode, encode
from tms.model import keys
from tms.model.lag import named_like
from tms.model.topic import (
    RETENTION_DEFAULT,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    TOMBSTONE_RETENTION_MS_DEFAULT,
    Cleanup,
    Durability,
    TopicInfo,
    TopicName,
    TopicSettings,
    check_namespace,
    parse_cleanup,
    parse_durability,
    parse_partitioner,
    parse_retention,
)
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.store.base import Map, Store, pages

T = TypeVar("T")
_log = EventLog(__name__)
OUTGROWN_MAX = 8
SCAN_BYTES = 1 << 20
_ATTEMPTS = 16
_NOT_FOREIGN = b'"has_foreign":false'  # in most records
_DROPPED = b"-"  # instead of the topic's name, which has more characters


class TopicRecord(msgspec.Struct, frozen=True):
    """A live topic. `uid` names its maps and is never used again."""

    uid: int
    generation: int
    created_ms: int
    partitions: int
    retention_ms: int | None
    retention_bytes: int | None
    durability: Durability
    message_bytes_max: int
    properties: dict[str, str] = {}  # set by CDAP's clients
    has_foreign: bool = False  # transactions that were not begun here have written to it
    cleanup: Cleanup = Cleanup.DELETE
    tombstone_retention_ms: int | None = TOMBSTONE_RETENTION_MS_DEFAULT
    outgrown: tuple[int, ...] = ()  # earlier numbers of partitions, newest first
    retention_is_default: bool = False  # it has none of its own; stored with `retention_ms` null
    partitioner: keys.Partitioner = keys.Partitioner.CRC32C

    @property
    def settings(self) -> TopicSettings:
        """The settings as a value of the model."""
        return TopicSettings(**_settings_in(self))

    def resolved(self, default_ms: int | None) -> "TopicRecord":
        """The record with its effective retention: its own, or the default."""
        if not self.retention_is_default:
            return self
        return msgspec.structs.replace(self, retention_ms=default_ms)


class Registry:
    """The topics of one store. Thread-safe. `announce` tells other processes that topics have
    changed."""

    def __init__(
        self,
        store: Store,
        metadata: Map,
        clock: Clock,
        topics_max: int,
        announce: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.metadata = metadata
        self.clock = clock
        self._topics_max = topics_max
        self._announce = announce or _nobody  # that topics have changed, to other processes
        self.known: dict[TopicName, TopicRecord] = {}  # as last seen
        self._lock = threading.Lock()
        noted = metadata.get(keys.RETENTION_DEFAULT)
        self._default_ms = RETENTION_MS_DEFAULT if noted is None else int(noted)
        self.refresh_default()
        self._topics = len(self.all())
        for uid in self.deleted():
            self.drop_maps(uid)

    def refresh_default(self) -> None:
        """Read the default retention of topics without their own. Where others clean the store it
        is recorded for them: they drop nothing that is readable here."""
        try:
            said_ms = self.store.default_retention_ms()
        except TMSError as error:  # the recorded one counts, for this process as well
            _log.warning("retention_default_unknown", error=error.message)
            return
        default_ms = RETENTION_MS_DEFAULT if said_ms is None else max(said_ms, RETENTION_MS_MIN)
        default_ms = min(default_ms, RETENTION_MS_MAX)
        if default_ms > self._default_ms:
            self._note_default(default_ms)
        with self._lock:
            if default_ms != self._default_ms:
                self._default_ms = default_ms
                self.known.clear()
        self._note_default(default_ms)

    @property
    def default_retention_ms(self) -> int:
        """The retention of topics without their own."""
        return self._default_ms

    def find(self, name: TopicName) -> TopicRecord:
        """The topic's record. Raises `TopicNotFound`."""
        record = self.known.get(name)
        if record is None:
            with self._lock:
                record, _ = self._read_raw(name)
                self.known[name] = record
        return record

    def page_of(
        self,
        owned: Iterable[tuple[TopicName, str]],
        after: tuple[str, str] | None,
        limit: int,
        summarize: Callable[[list[tuple[TopicName, str]]], list[T]],
    ) -> list[T]:
        """Summaries of up to `limit` of the things of topics of a namespace, each by its topic and
        its name, in this order, after the one of a topic and a name; without those of deleted
        topics. `summarize` leaves out what is deleted meanwhile. Only the last page is shorter:
        others take the place of what is left out."""
        begin = after or ("", "")
        behind = [(topic, name) for topic, name in owned if (topic.topic, name) > begin]
        topics = groupby(_sorted(behind), lambda one: one[0])
        there = chain.from_iterable(
            some for topic, some in topics if topic in self.known or self._read(topic)
        )
        page: list[T] = []
        while some := list(islice(there, max(0, limit - len(page)))):
            page += summarize(some)
        return page

    def name_of(self, uid: int) -> TopicName | None:
        """The name of the topic with this uid; None if there is none."""
        for name, record in [*self.known.items()]:
            if record.uid == uid:
                return name
        return next((name for name, record in self.all() if record.uid == uid), None)

    def names_of(self, uids: Collection[int]) -> dict[int, TopicName]:
        """The names of topics by uid, of these and others; without those that are deleted."""
        names = {record.uid: name for name, record in [*self.known.items()]}
        if not all(uid in names for uid in uids):
            names |= {record.uid: name for name, record in self.all()}
        return names

    def create(
        self, name: TopicName, settings: TopicSettings, properties: Mapping[str, str] | None = None
    ) -> tuple[TopicRecord, bool]:
        """The topic's record, and True if it is new. Raises `TopicExists` if it exists with other
        settings."""
        with self._lock:
            existing = self._read(name)
            if existing is None:
                if self._topics >= self._topics_max:
                    raise Conflict(
                        f"There are {self._topics} topics, the bound of this engine. Delete unused "
                        "ones, or raise the bound.",
                        topics_max=self._topics_max,
                    )
                uid = self._count(keys.TOPIC_UID_COUNTER)
                generation = self._count(keys.generation_key(*name))
                record = TopicRecord(
                    uid,
                    generation,
                    self.clock.now_ms(),
                    properties=dict(properties or {}),
                    **_settings_in(settings),
                ).resolved(self._default_ms)
                if self.metadata.compare_and_set(keys.topic_key(*name), None, _stored(record)):
                    self.known[name] = record
                    self._topics += 1
                    return record, True
                existing = self._read(name)
            if existing is not None and self._agree(existing.settings, settings):
                return existing, False
            raise TopicExists(
                f"The topic {name} exists with other settings. Update it, or choose another name.",
                topic=str(name),
            )

    def update(
        self,
        name: TopicName,
        changes: Mapping[str, object],
        properties: Mapping[str, str] | None = None,
    ) -> TopicRecord:
        """Change settings; keys are the fields of `TopicSettings` or `retention`. `properties`
        replace the present ones. Raises `FewerPartitions`, `Conflict`, `Invalid`."""
        with self._lock:
            old, raw = self._read_raw(name)
            settings = changed(old.settings, changes)
            if settings.partitioner is not old.partitioner:
                raise Conflict(
                    f"The partitioner of the topic {name} is {old.partitioner} and cannot become "
                    f"{settings.partitioner}: the messages of a key would go to two partitions and "
                    "lose their order. Create another topic, and publish the messages to it.",
                    topic=str(name),
                )
            if settings.partitions < old.partitions:
                raise FewerPartitions(
                    f"The topic {name} has {old.partitions} partitions; their number can only "
                    f"grow, not become {settings.partitions}.",
                    partitions=old.partitions,
                )
            new_properties = old.properties if properties is None else dict(properties)
            outgrown = old.outgrown
            if settings.partitions > old.partitions:
                outgrown = (old.partitions, *outgrown)[:OUTGROWN_MAX]
            new = msgspec.structs.replace(
                old, properties=new_properties, outgrown=outgrown, **_settings_in(settings)
            )
            self._set(name, raw, new)
            known = self.known[name] = new.resolved(self._default_ms)
        self._announce()
        return known

    def require_life(self, name: TopicName, uid: int) -> None:
        """Raise `TopicNotFound` unless this generation of a topic is in the store."""
        record = self._read(name)
        if record is not None and record.uid == uid:
            return
        self._forget(name, uid)
        anew = "deleted and created anew" if record is not None else "deleted"
        raise TopicNotFound(f"The topic {name} was {anew} by another process.", topic=str(name))

    def refresh(self) -> list[tuple[TopicName, TopicRecord]]:
        """Every topic, from the store; cached records that others have changed are dropped."""
        remembered = [*self.known.items()]
        stored = self.all()
        now = dict(stored)
        for name, record in remembered:
            if now.get(name) != record:
                self._forget(name, record.uid)
        return stored

    def _forget(self, name: TopicName, uid: int) -> None:
        with self._lock:
            known = self.known.get(name)
            if known is not None and known.uid == uid:
                del self.known[name]

    def note_foreign(self, name: TopicName) -> None:
        """Record that transactions that were begun elsewhere write to the topic."""
        if self.find(name).has_foreign:
            return
        with self._lock:
            old, raw = self._read_raw(name)
            new = msgspec.structs.replace(old, has_foreign=True)
            self._set(name, raw, new)
            self.known[name] = new
        self._announce()

    def delete(self, name: TopicName) -> TopicRecord:
        """Make the topic unreadable for good. Its maps are dropped by `drop_maps`."""
        with self._lock:
            record, raw = self._read_raw(name)
            self.metadata.write(
                [(keys.deleted_key(record.uid), str(name).encode())], Durability.SYNCED
            )
            self._set(name, raw, None)
            self._topics -= 1
            if self.store.shared:
                self._drop_records(record.uid)
        self._announce()
        return record

    def journal_start(self, uid: int, partition: int) -> str | None:
        """The id of the message at which a replay of an internal topic's partition begins."""
        raw = self.metadata.get(keys.journal_key(uid, partition))
        return None if raw is None else raw.decode()

    def set_journal_start(self, uid: int, partition: int, id: str) -> None:
        """Record the id of the message at which a replay of an internal topic's partition
        begins."""
        key = keys.journal_key(uid, partition)
        self.metadata.write([(key, id.encode())], Durability.SYNCED)

    def deleted(self) -> list[int]:
        """The uids of deleted topics whose maps are not dropped yet."""
        prefix = keys.DELETED_PREFIX
        with self._lock:
            noted = self._rows(prefix)
            uids = {int(key[len(prefix) :], 16) for key, name in noted if name != _DROPPED}
            if not uids:
                return []
            live = {record.uid for _, record in self.all()}
            # Deleting this topic was interrupted before its record was removed.
            self.metadata.delete([keys.deleted_key(uid) for uid in sorted(uids & live)])
            return sorted(uids - live)

    def drop_maps(self, uid: int) -> None:
        """Drop all maps of a deleted topic."""
        for map_name in self.store.names(keys.topic_prefix(uid)):
            self.store.drop(map_name)
        noted = keys.deleted_key(uid)
        if self.store.shared:  # others clean the rows of the dropped maps by this record
            self._drop_records(uid)
            self.metadata.write([(noted, _DROPPED)], Durability.SYNCED)
        else:
            self.metadata.delete([*self._records_of(uid), noted])

    def _drop_records(self, uid: int) -> None:
        """Remove the records of a deleted topic's partitions, and prevent that another process
        writes them again."""
        for _ in range(_ATTEMPTS):
            gone = self._records_of(uid)
            if not gone:
                return
            self.metadata.delete(gone)
        raise StorageUnavailable("Another process still writes to the deleted topic. Try again.")

    def _records_of(self, uid: int) -> list[bytes]:
        prefixes = (
            keys.partition_key(uid, 0)[:-5],
            keys.producers_key(uid, 0)[:-5],
            keys.forgotten_key(uid, 0, "")[:-6],
            keys.compaction_key(uid, 0)[:-5],
        )
        return [key for prefix in prefixes for key, _ in self._rows(prefix)]

    def page(
        self, namespace: str, after: str | None, limit: int, search: str | None = None
    ) -> list[tuple[TopicName, TopicRecord]]:
        """Up to `limit` topics of a namespace whose names contain a text, by name, after the one
        named `after`."""
        check_namespace(namespace)
        if after is not None:
            TopicName.of(namespace, after)
        prefix = keys.topic_key(namespace, "")
        start = prefix if after is None else keys.topic_key(namespace, after) + b"\0"
        scanned = pages(self.metadata, start, keys.prefix_stop(prefix), SCAN_BYTES)
        is_wanted = named_like(search)
        rows = (
            row for row in chain.from_iterable(scanned) if is_wanted(row[0][len(prefix) :].decode())
        )
        return self._topics_in(islice(rows, max(0, limit)))

    def namespaces(self, after: str | None = None) -> Iterator[str]:
        """The namespaces that have topics, in order, after this one; one look-up for each."""
        stop = keys.prefix_stop(b"topic/")
        start = b"topic/" if after is None else keys.prefix_stop(keys.topic_key(after, ""))
        while found := self.metadata.scan(start, stop, 1):
            namespace = found[0][0].decode("ascii").split("/")[1]
            yield namespace
            start = keys.prefix_stop(keys.topic_key(namespace, ""))

    def all(self) -> list[tuple[TopicName, TopicRecord]]:
        """Every topic."""
        return self._topics_in(self._rows(b"topic/"))

    def foreign(self) -> list[TopicName]:
        """The topics to which transactions that were begun elsewhere have written; most records are
        not decoded."""
        rows = ((key, raw) for key, raw in self._rows(b"topic/") if _NOT_FOREIGN not in raw)
        return [name for name, record in self._topics_in(rows) if record.has_foreign]

    def _topics_in(
        self, rows: Iterable[tuple[bytes, bytes]]
    ) -> list[tuple[TopicName, TopicRecord]]:
        topics: list[tuple[TopicName, TopicRecord]] = []
        for key, raw in rows:
            _, namespace, topic = key.decode("ascii").split("/")
            topics.append((TopicName(namespace, topic), self._decoded(raw, key)))
        return topics

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All records whose keys begin with a prefix."""
        stop = keys.prefix_stop(prefix)
        return chain.from_iterable(pages(self.metadata, prefix, stop, SCAN_BYTES))

    def _note_default(self, default_ms: int) -> None:
        noted = b"%d" % default_ms
        if self.store.shared and self.metadata.get(keys.RETENTION_DEFAULT) != noted:
            self.metadata.write([(keys.RETENTION_DEFAULT, noted)], Durability.WRITTEN)

    def _read(self, name: TopicName) -> TopicRecord | None:
        key = keys.topic_key(*name)
        raw = self.metadata.get(key)
        return None if raw is None else self._decoded(raw, key)

    def _read_raw(self, name: TopicName) -> tuple[TopicRecord, bytes]:
        """The record, and its bytes, which another version of TMS may have written. Raises
        `TopicNotFound`."""
        key = keys.topic_key(*name)
        raw = self.metadata.get(key)
        if raw is None:
            raise TopicNotFound(
                f"There is no topic {name}. Create it, or list the topics to find it.",
                topic=str(name),
            )
        return self._decoded(raw, key), raw

    def _decoded(self, raw: bytes, key: bytes) -> TopicRecord:
        return decode(raw, TopicRecord, key).resolved(self._default_ms)

    def _agree(self, existing: TopicSettings, wanted: TopicSettings) -> bool:
        """True if a topic has the wanted settings. A request without a retention agrees with the
        default, and with the built-in one, which earlier versions stored as the topic's own."""
        kept_ms = [wanted.retention_ms]
        if wanted.retention_is_default:
            kept_ms = [self._default_ms, RETENTION_MS_DEFAULT]
        same = replace(
            wanted,
            retention_ms=existing.retention_ms,
            retention_is_default=existing.retention_is_default,
        )
        return existing == same and existing.retention_ms in kept_ms

    def _count(self, key: bytes) -> int:
        for _ in range(_ATTEMPTS):
            raw = self.metadata.get(key)
            number = 1 if raw is None else int(raw) + 1
            if self.metadata.compare_and_set(key, raw, b"%d" % number):
                return number
        raise StorageUnavailable("A counter is being changed by many others at once. Try again.")

    def _set(self, name: TopicName, old: bytes, new: TopicRecord | None) -> None:
        self.known.pop(name, None)  # if this fails, only the store knows whether it took effect
        raw = None if new is None else _stored(new)
        if not self.metadata.compare_and_set(keys.topic_key(*name), old, raw):
            raise StorageUnavailable(
                f"The topic {name} is being changed by another one. Try again."
            )


def _sorted(entries: list[tuple[TopicName, str]]) -> Iterator[tuple[TopicName, str]]:
    """Entries in order, for readers that need only the first of many."""
    heapify(entries)
    while entries:
        yield heappop(entries)


def _nobody() -> None:
    """Do nothing: no other process has to be told."""


def _settings_in(source: TopicRecord | TopicSettings) -> dict[str, Any]:
    """The settings of a topic, by name."""
    return {name: getattr(source, name) for name in TopicSettings.__slots__}


def _stored(record: TopicRecord) -> bytes:
    """The record as it is stored: a default is not the topic's own."""
    return encode(record.resolved(None))


def changed(settings: TopicSettings, changes: Mapping[str, object]) -> TopicSettings:
    """The settings with changes applied. Raises `Invalid`."""
    fields = _settings_in(settings)
    for key, value in changes.items():
        if key == "retention" and value == RETENTION_DEFAULT:
            fields["retention_is_default"] = True
            continue
        if key in ("retention", "tombstone_retention"):
            if not isinstance(value, str | int | None):
                raise Invalid(f"Retention is a text or a number, got {value!r}.", field=key)
            fields[f"{key}_ms"] = parse_retention(value, key)
        elif key == "durability":
            fields[key] = parse_durability(str(value))
        elif key == "cleanup":
            fields[key] = parse_cleanup(str(value))
        elif key == "partitioner":
            fields[key] = parse_partitioner(str(value))
        elif key in fields:
            fields[key] = value
        else:
            raise Invalid(f"A topic has no setting {key!r}; it has {', '.join(fields)}.", field=key)
        if key in ("retention", "retention_ms"):
            fields["retention_is_default"] = False
    return TopicSettings(**fields)


def topic_info(name: TopicName, record: TopicRecord) -> TopicInfo:
    """The record as callers see it, without partitions."""
    return TopicInfo(
        name.namespace, name.topic, record.generation, record.created_ms, record.settings
    )
