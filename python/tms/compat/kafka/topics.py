"""Settings of topics as Kafka's clients spell them.

    cleanup.policy        delete, compact, or both
    retention.ms          -1 for ever; as TMS, at least a second
    retention.bytes       of a partition; -1 for no limit
    max.message.bytes     of a batch of Kafka, of a message of TMS
    delete.retention.ms   of tombstones
    message.timestamp.type  CreateTime

Settings of Kafka that have no meaning here (segments, replicas, flushes) are accepted, since tools
send them along, and described as read only, with the value that the service has. Unknown ones, and
values of the wrong type, are refused.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from tms.compat.kafka.brokers import Brokers
from tms.compat.kafka.codec import KafkaMessage
from tms.errors import Invalid
from tms.model.keys import Partitioner
from tms.model.quantity import whole
from tms.model.topic import (
    PARTITIONS_MAX,
    RETENTION_BYTES_MIN,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    TopicSettings,
    parse_cleanup,
)
from tms.topics.registry import changed

TOPIC_RESOURCE = 2  # the kinds of resources that have settings
BROKER_RESOURCE = 4
LONG_MAX = 2**63 - 1
BOOLEAN = 1
STRING = 2
INT = 3
LONG = 5
DOUBLE = 6
LIST = 7
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class Source(IntEnum):
    """The origin of a setting's value, by Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A place where the value of a setting may come from: its name and its value there."""

    name: str
    value: str
    source: Source


class Setting(NamedTuple):
    """A setting as it is described. The first of `synonyms` has its value."""

    name: str
    type: int
    synonyms: tuple[Synonym, ...]
    read_only: bool = True

    @property
    def value(self) -> str:
        """The value that counts."""
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        """The origin of the value."""
        return self.synonyms[0].source

    def shown(self, made: Callable[..., KafkaMessage], **more: object) -> KafkaMessage:
        """The setting as a part of an answer, an object of `made` with these other fields, too."""
        return made(
            name=self.name,
            value=self.value,
            read_only=self.read_only,
            config_source=self.source,
            **more,
        )

    @classmethod
    def of_broker(cls, name: str, value: str, type: int, source: Source) -> "Setting":
        """A setting of the broker, or one without an effect."""
        return cls(name, type, (Synonym(name, value, source),))


class _Kept(NamedTuple):
    """A setting that topics have: its field of `TopicSettings`, its type, the name of its default
    among the settings of Kafka's brokers, and the functions that read and write it. `read` takes
    the setting's name and the text."""

    field: str
    type: int
    broker_name: str
    read: Callable[[str, str], object]
    write: Callable[[Any], str]


def _whole(name: str, text: str, least: int = 0) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise Invalid(f"{name} is a whole number, got {text!r:.40}.", field=name)
    return whole(name, int(text), least, LONG_MAX)


def _bound(least: int, most: int, name: str, text: str) -> int | None:
    """A bound; None for -1 and for more than `most`, which mean none. One below `least` becomes
    that."""
    number = _whole(name, text, -1)
    return None if number < 0 or number > most else max(least, number)


def _or(none: int, value: int | None) -> str:
    return str(none if value is None else value)


_RETENTION = partial(_bound, RETENTION_MS_MIN, RETENTION_MS_MAX)
_KEPT = {
    "cleanup.policy": _Kept(
        "cleanup", LIST, "log.cleanup.policy", lambda _, text: parse_cleanup(text), str
    ),
    "delete.retention.ms": _Kept(
        "tombstone_retention_ms",
        LONG,
        "log.cleaner.delete.retention.ms",
        _RETENTION,
        partial(_or, LONG_MAX),
    ),
    "max.message.bytes": _Kept("message_bytes_max", INT, "message.max.bytes", _whole, str),
    "retention.bytes": _Kept(
        "retention_bytes",
        LONG,
        "log.retention.bytes",
        partial(_bound, RETENTION_BYTES_MIN, LONG_MAX),
        partial(_or, -1),
    ),
    "retention.ms": _Kept("retention_ms", LONG, "log.retention.ms", _RETENTION, partial(_or, -1)),
}
_TIME_TYPE = "message.timestamp.type"
_CREATE_TIME = "CreateTime"

# Settings without an effect, with the value that says what the service does, and its type.
_WITHOUT_EFFECT = {
    "compression.type": ("producer", STRING),
    "compression.gzip.level": ("-1", INT),
    "compression.lz4.level": ("9", INT),
    "compression.zstd.level": ("3", INT),
    "file.delete.delay.ms": ("60000", LONG),
    "flush.messages": (str(LONG_MAX), LONG),
    "flush.ms": (str(LONG_MAX), LONG),
    "follower.replication.throttled.replicas": ("", LIST),
    "index.interval.bytes": ("4096", INT),
    "leader.replication.throttled.replicas": ("", LIST),
    "local.retention.bytes": ("-2", LONG),
    "local.retention.ms": ("-2", LONG),
    "max.compaction.lag.ms": (str(LONG_MAX), LONG),
    "message.downconversion.enable": ("true", BOOLEAN),
    "message.format.version": ("3.0-IV1", STRING),
    "message.timestamp.after.max.ms": (str(LONG_MAX), LONG),
    "message.timestamp.before.max.ms": (str(LONG_MAX), LONG),
    "message.timestamp.difference.max.ms": (str(LONG_MAX), LONG),
    _TIME_TYPE: (_CREATE_TIME, STRING),
    "min.cleanable.dirty.ratio": ("0.5", DOUBLE),
    "min.compaction.lag.ms": ("0", LONG),
    "min.insync.replicas": ("1", INT),
    "preallocate": ("false", BOOLEAN),
    "remote.storage.enable": ("false", BOOLEAN),
    "segment.bytes": ("1073741824", INT),
    "segment.index.bytes": ("10485760", INT),
    "segment.jitter.ms": ("0", LONG),
    "segment.ms": ("604800000", LONG),
    "unclean.leader.election.enable": ("false", BOOLEAN),
}
_DEFAULT = TopicSettings()
_NAMES = sorted([*_KEPT, *_WITHOUT_EFFECT])


def settings_of(given: Mapping[str, str | None], partitions: int) -> TopicSettings:
    """The settings of a new topic; None stands for the default. Raises `Invalid`."""
    fresh = TopicSettings(
        partitions=partitions,
        retention_is_default=True,
        partitioner=Partitioner.MURMUR2,  # so that keys keep their order whoever publishes
    )
    return with_changes(fresh, changes_of(given))


def with_changes(settings: TopicSettings, changes: Mapping[str, object]) -> TopicSettings:
    """The settings after changes. Raises `Invalid`."""
    try:
        return changed(settings, changes)
    except Invalid as error:
        raise Invalid(error.message, field="config") from error


def changes_of(given: Mapping[str, str | None]) -> dict[str, object]:
    """Changes of `TopicSettings`, by its fields; None stands for the default. Raises `Invalid`."""
    changes: dict[str, object] = {}
    for name, text in given.items():
        kept = _KEPT.get(name)
        try:
            if kept is None:
                _check(name, text)
            elif text is not None:
                changes[kept.field] = kept.read(name, text)
            elif kept.field == "retention_ms":
                changes["retention_is_default"] = True
            else:
                changes[kept.field] = getattr(_DEFAULT, kept.field)
        except Invalid as error:
            raise Invalid(error.message, field="config") from error
    return changes


def all_changes_of(given: Mapping[str, str | None]) -> dict[str, object]:
    """Changes that set all settings: those that are not given to their defaults. Raises
    `Invalid`."""
    return changes_of({**dict.fromkeys(_KEPT), **given})


def list_of(settings: TopicSettings, name: str) -> list[str]:
    """The elements of a setting that is a list. Raises `Invalid` for others."""
    for setting in described(settings, _DEFAULT):
        if setting.name == name and setting.type == LIST:
            return elements(setting.value)
    raise Invalid(
        f"{name!r:.80} is no list: set it as a whole, in place of adding to it or taking from it.",
        field="config",
    )


def elements(text: str) -> list[str]:
    """The elements of a list as Kafka spells it."""
    return [part.strip() for part in text.split(",") if part.strip()]


def described(settings: TopicSettings, defaults: TopicSettings) -> Iterator[Setting]:
    """All settings of a topic, in the order of their names. `defaults` has the values of topics for
    which no one chose any."""
    for name in _NAMES:
        kept = _KEPT.get(name)
        if kept is None:
            yield Setting.of_broker(name, *_WITHOUT_EFFECT[name], Source.DEFAULT)
            continue
        value = getattr(settings, kept.field)
        default = getattr(defaults, kept.field)
        synonyms = [Synonym(kept.broker_name, kept.write(default), Source.DEFAULT)]
        chosen = kept.field == "retention_ms" and not settings.retention_is_default
        if chosen or value != default:
            synonyms.insert(0, Synonym(name, kept.write(value), Source.DYNAMIC_TOPIC))
        yield Setting(name, kept.type, tuple(synonyms), read_only=False)


def require_count(partitions: int) -> int:
    """The number of partitions itself. Raises `Invalid`."""
    return whole("partitions", partitions, 1, PARTITIONS_MAX)


def require_assignable(brokers: Brokers, replicas: Iterable[Iterable[int]]) -> None:
    """Raise `Invalid` unless each partition has the only broker as its only replica."""
    if brokers.are_several:
        raise Invalid(
            "Brokers own partitions as the service places them; the store replicates. Leave the "
            "assignment out, and see `tms cluster move`.",
            field="assignments",
        )
    for wanted in replicas:
        if [*wanted] != [brokers.own.id]:
            raise Invalid(
                f"There is one broker, {brokers.own.id}, which has every partition; the store "
                "replicates.",
                field="assignments",
            )


def _check(name: str, text: str | None) -> None:
    """Raise `Invalid` for an unknown setting, and for a value of the wrong type."""
    if name not in _WITHOUT_EFFECT:
        raise Invalid(f"There is no setting {name!r:.80} of a topic.")
    _, type = _WITHOUT_EFFECT[name]
    if name == _TIME_TYPE and text not in (None, _CREATE_TIME):
        raise Invalid(
            f"{name} is {_CREATE_TIME}, got {text!r:.40}: messages keep the times that their "
            "producers gave. Leave the setting out; a batch without times gets its append time."
        )
    if text is None or type in (STRING, LIST):
        return
    if type == BOOLEAN:
        if text.strip().lower() not in ("true", "false"):
            raise Invalid(f"{name} is true or false, got {text!r:.40}.")
    elif type == DOUBLE:
        try:
            float(text)
        except ValueError:
            raise Invalid(f"{name} is a number, got {text!r:.40}.") from None
    else:
        _whole(name, text, -LONG_MAX)
