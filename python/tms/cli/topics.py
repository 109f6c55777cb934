"""`tms topic …`: topics and their settings.

`truncate` and `delete` ask for the topic's name first, show with `--dry-run` what they would do,
and take `--yes`.
"""

from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, TypedDict, Unpack

import click
import msgspec

from tms.cli.output import Format, Row, columns, table_text, write
from tms.cli.parameters import (
    LIMIT,
    RETENTION,
    SIZE,
    TOPIC_RETENTION,
    DryRunOption,
    NamespaceOption,
    PartitionOption,
    PositionOption,
    TopicParameter,
    YesOption,
    one_of,
    session_command,
)
from tms.cli.session import CommandGroup, Session, changes_of, given
from tms.errors import PartitionNotFound
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.lag import TopicSize
from tms.model.position import LATEST
from tms.model.quantity import duration_text
from tms.model.topic import PARTITIONS_MAX, Cleanup, Durability, TopicInfo


@click.group("topic", cls=CommandGroup)
def command() -> None:
    """Create, describe, list, update, truncate and delete topics, erase messages."""


class _TopicChoices(TypedDict):
    partitions: Annotated[int, "-p", click.IntRange(1, PARTITIONS_MAX), "Number of partitions."]
    retention: Annotated[
        str,
        TOPIC_RETENTION,
        "Keep messages this long: 36h, 14d, forever; default is the store's. [default]",
    ]
    retention_bytes: Annotated[int | str, LIMIT, "Keep at most this much per partition."]
    durability: Annotated[
        str, one_of(Durability), "Survive nothing (none), a crash (written), power loss (synced)."
    ]
    message_bytes_max: Annotated[int, SIZE, "Largest message. [8M]"]
    cleanup: Annotated[
        str,
        one_of(Cleanup),
        "compact keeps the newest message of each key, whatever its age. [delete]",
    ]
    tombstone_retention: Annotated[
        str, RETENTION, "Least age of a tombstone that compaction removes: 24h, forever. [24h]"
    ]


class _NewTopicChoices(_TopicChoices):
    partitioner: Annotated[
        str,
        one_of(Partitioner),
        "How keys select partitions; murmur2 is that of Kafka's clients. Fixed for good. [crc32c]",
    ]


@session_command("create", command)
def create(session: Session, topic: TopicParameter, **chosen: Unpack[_NewTopicChoices]) -> None:
    """Create TOPIC. Doing it again with the same settings changes nothing."""
    settings = given(chosen)
    if settings.get("retention_bytes") == "unlimited":
        del settings["retention_bytes"]
    with session.bus(create=True) as bus:
        _show_topic(session, bus.create_topic(topic, **settings))


@session_command("update", command)
def update(session: Session, topic: TopicParameter, **chosen: Unpack[_TopicChoices]) -> None:
    """Change settings of TOPIC; partitions can only be added."""
    changes = changes_of(chosen)
    with session.bus() as bus:
        _show_topic(session, bus.update_topic(topic, **changes))


@session_command("describe", command)
def describe(session: Session, topic: TopicParameter) -> None:
    """Show settings and partitions of TOPIC."""
    with session.bus() as bus:
        info = bus.describe_topic(topic)
    _show_topic(session, info)
    if session.format is Format.TABLE and info.partition_infos:
        write("\n" + table_text([msgspec.to_builtins(part) for part in info.partition_infos]))


@session_command("list", command)
def list_(session: Session, namespace: NamespaceOption = "default") -> None:
    """List the topics of a namespace, with what they hold."""
    with session.bus() as bus:
        infos = list(bus.list_topics(namespace))
        sizes = {size.topic: size for size in bus.list_topic_sizes(namespace)} if infos else {}
    if not infos and session.format is Format.TABLE:
        session.say(f"No topics in the namespace {namespace}; `tms topic create NAME` makes one.")
    held = [_held(sizes.get(str(info.name))) for info in infos]
    documents = [_document(info) | dict(more) for info, more in zip(infos, held, strict=True)]
    rows = [_row(info, more) for info, more in zip(infos, held, strict=True)]
    session.show(documents, rows)


def _held(size: TopicSize | None) -> Row:
    messages, stored = (None, None) if size is None else (size.messages, size.stored_bytes)
    return {"messages": messages, "stored_bytes": stored}


@session_command("producers", command)
def producers(
    session: Session,
    topic: TopicParameter,
    partition: Annotated[int, "-p", click.IntRange(0, PARTITIONS_MAX - 1), "Of this one. [0]"] = 0,
    limit: Annotated[int, "-n", click.IntRange(1, 1_000), "At most so many. [20]"] = 20,
) -> None:
    """List the producers and idempotency keys that a partition of TOPIC remembers, the one that
    published last first."""
    with session.bus() as bus:
        infos = bus.list_producers(topic, partition, limit)
    if not infos and session.format is Format.TABLE:
        session.say(f"Partition {partition} of {topic} remembers no producers.")
    documents = [msgspec.to_builtins(info) for info in infos]
    rows = [
        {"producer": str(info.producer_id), **columns(info, "kind", "epoch", "last_sequence")}
        | {"last": time_text(info.time_ms), "end_offset": info.end_offset}
        for info in infos
    ]
    session.show(documents, rows)


@session_command("truncate", command)
def truncate(
    session: Session,
    topic: TopicParameter,
    before: Annotated[PositionOption, "Keep messages at or after this position. [latest]"] = LATEST,
    partition: Annotated[PartitionOption, "Only there. [all]"] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove the messages of TOPIC before a position. This cannot be undone.

    \b
      tms topic truncate orders --before time:1700000000000
      tms topic truncate orders --before offset:5000 --partition 3
    """
    with session.bus() as bus:
        info = bus.describe_topic(topic)
        of = topic
        if partition is not None:
            of = f"partition {partition} of {topic}"
            if partition >= info.settings.partitions:
                raise PartitionNotFound(f"There is no {of}; see `tms topic describe {topic}`.")
            info = replace(info, partition_infos=(info.partition_infos[partition],))
        what = f"Messages of {of} before {before} will be removed for good ({_contents(info)})."
        if session.proceed(what, topic, dry_run, yes):
            info = bus.truncate_topic(topic, before, partition)
    _show_topic(session, info)


@session_command("erase", command)
def erase(
    session: Session,
    topic: TopicParameter,
    key: Annotated[str | None, "-k", "Erase the messages with this key."] = None,
    key_hex: Annotated[str | None, "The same, the key's bytes in hexadecimal."] = None,
    message_id: Annotated[str | None, "--id", "Erase the message with this id."] = None,
    partition: Annotated[PartitionOption, "Only there. [all]"] = None,
    yes: YesOption = False,
) -> None:
    """Erase the messages of a key, also those that are not due yet, or one message, from TOPIC and
    from the store for good.

    \b
      tms topic erase orders --key user-17
      tms topic erase orders --id 0000018bcfe56800000100000000000000000000 --partition 3
    """
    if sum(given is not None for given in (key, key_hex, message_id)) != 1:
        raise click.UsageError("Give one of --key, --key-hex and --id.")
    try:
        raw = key.encode(errors="surrogateescape") if key is not None else None
        raw = bytes.fromhex(key_hex) if key_hex is not None else raw
    except ValueError as exc:
        raise click.BadParameter(
            "A key in hexadecimal has pairs of digits.", param_hint="--key-hex"
        ) from exc
    id = None if message_id is None else MessageId.parse(message_id)
    what = f"the message {id}" if id is not None else f"every message with the key {raw!r}"
    with session.bus() as bus:
        bus.describe_topic(topic)
        session.confirm(f"{what} of {topic} will be erased for good.", topic, yes)
        erased = bus.erase(topic, key=raw, id=id, partition=partition)
        session.say(f"erased {erased:,} messages")
    session.show_result({"topic": topic, "erased": erased})


@session_command("delete", command)
def delete(
    session: Session, topic: TopicParameter, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Delete TOPIC and all its messages. This cannot be undone."""
    with session.bus() as bus:
        info = bus.describe_topic(topic)
        what = f"{topic} will be deleted for good ({_contents(info)})."
        if session.proceed(what, topic, dry_run, yes):
            bus.delete_topic(topic)
            session.say(f"deleted {topic}")
    session.show_result({"topic": topic, "deleted": not dry_run})


def retention_text(ms: int | None) -> str:
    """`14d`, `36h`, `forever`: the largest unit that divides it."""
    return "forever" if ms is None else duration_text(ms)


def time_text(ms: int) -> str:
    """A time in ms since 1970 as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _contents(info: TopicInfo) -> str:
    parts = info.partition_infos
    messages = sum(part.end_offset - part.start_offset for part in parts)
    stored = sum(part.stored_bytes for part in parts)
    return f"{messages:,} messages, {stored:,} bytes, {len(parts)} partitions"


def _document(info: TopicInfo) -> dict[str, Any]:
    made: dict[str, Any] = {"name": str(info.name), **msgspec.to_builtins(info)}
    return made


def _row(info: TopicInfo, held: Row = MappingProxyType({})) -> Row:
    settings = info.settings
    return {
        "name": str(info.name),
        "partitions": settings.partitions,
        **held,
        "retention": retention_text(settings.retention_ms)
        + (" (default)" if settings.retention_is_default else ""),
        "retention_bytes": settings.retention_bytes,
        "cleanup": settings.cleanup.value,
        "durability": settings.durability.value,
        "message_bytes_max": settings.message_bytes_max,
        "partitioner": settings.partitioner.value,
        "created": time_text(info.created_ms),
        "generation": info.generation,
    }


def _show_topic(session: Session, info: TopicInfo) -> None:
    session.show_one(_document(info), _row(info))
