"""Settings of topics as Kafka's clients spell them.

    cleanup.policy        delete, compact, or both
    retention.ms          -1 for ever; as TMS, at least a second
    retention.bytes       of a partition; -1 for no limit
    max.message.bytes     of a batch of Kafka, of a message of TMS
    delete.retention.ms   of tombstones
    message.timestamp.type  CreateTime

Settings of Kafka that have no meaning here (segments, replicas, flushes) are accepted, since tools
send them along, and described with the value that the service has. Unknown ones are refused.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tms.errors import Invalid
from tms.model.keys import Partitioner
from tms.model.quantity import whole
from tms.model.topic import (
    MESSAGE_BYTES_DEFAULT,
    RETENTION_BYTES_MIN,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    TopicSettings,
    parse_cleanup,
)

LONG_MAX = 2**63 - 1
BOOLEAN = 1
STRING = 2
INT = 3
LONG = 5
DOUBLE = 6
LIST = 7


class Setting(NamedTuple):
    """A setting as it is described. `is_default` says that no one chose the value."""

    name: str
    value: str
    type: int
    is_default: bool


_TIME_TYPE = "message.timestamp.type"
_CREATE_TIME = "CreateTime"

# Settings without an effect, with the value that says what the service does.
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


def settings_of(given: Mapping[str, str | None], partitions: int) -> TopicSettings:
    """The settings of a new topic. Raises `Invalid`."""
    values: dict[str, object] = {
        "retention_is_default": True,
        "partitioner": Partitioner.MURMUR2,  # so that keys keep their order whoever publishes
    }
    for name, text in given.items():
        if name == _TIME_TYPE and text not in (None, _CREATE_TIME):
            raise Invalid(
                f"{name} is {_CREATE_TIME}, got {text!r:.40}: messages keep the times that their "
                "producers gave. Leave the setting out; a batch without times gets its append "
                "time.",
                field=name,
            )
        if text is None or name in _WITHOUT_EFFECT:
            continue
        if name == "cleanup.policy":
            values["cleanup"] = parse_cleanup(text)
        elif name == "retention.ms":
            values["retention_ms"] = _bounded(name, text, RETENTION_MS_MIN, RETENTION_MS_MAX)
            values["retention_is_default"] = False
        elif name == "retention.bytes":
            values["retention_bytes"] = _bounded(name, text, RETENTION_BYTES_MIN, LONG_MAX)
        elif name == "max.message.bytes":
            values["message_bytes_max"] = _number(name, text)
        elif name == "delete.retention.ms":
            values["tombstone_retention_ms"] = _bounded(
                name, text, RETENTION_MS_MIN, RETENTION_MS_MAX
            )
        else:
            raise Invalid(f"There is no setting {name!r:.80} of a topic.", field=name)
    return TopicSettings(partitions=partitions, **values)  # type: ignore[arg-type]


def described(settings: TopicSettings) -> Iterator[Setting]:
    """All settings of a topic, in the order of their names."""
    retention = -1 if settings.retention_ms is None else settings.retention_ms
    size = -1 if settings.retention_bytes is None else settings.retention_bytes
    tombstones = settings.tombstone_retention_ms
    own = {
        "cleanup.policy": (str(settings.cleanup), LIST, settings.cleanup == _DEFAULT.cleanup),
        "delete.retention.ms": (
            str(LONG_MAX if tombstones is None else tombstones),
            LONG,
            tombstones == _DEFAULT.tombstone_retention_ms,
        ),
        "max.message.bytes": (
            str(settings.message_bytes_max),
            INT,
            settings.message_bytes_max == MESSAGE_BYTES_DEFAULT,
        ),
        "retention.bytes": (str(size), LONG, settings.retention_bytes is None),
        "retention.ms": (str(retention), LONG, settings.retention_is_default),
    }
    others = {name: (value, kind, True) for name, (value, kind) in _WITHOUT_EFFECT.items()}
    for name, told in sorted((own | others).items()):
        yield Setting(name, *told)


def _bounded(name: str, text: str, least: int, most: int) -> int | None:
    """A bound; None for -1 and for more than `most`, which mean none. One below `least` becomes
    that."""
    number = _number(name, text, -1)
    return None if number < 0 or number > most else max(least, number)


def _number(name: str, text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise Invalid(f"{name} is a whole number, got {text!r:.40}.", field=name) from None
    return whole(name, number, least, LONG_MAX)
