"""`tms import`: the messages of files are published to a topic.

    every file is read and checked ──▶ one transaction for each: its messages, and its token

Invariants

* Nothing is published before every line of every file was found good: standard input goes to a
  temporary file first.
* A file is imported whole or not at all, and once: the position of the group `import.DIGEST`, named
  after what is in the file, moves in the transaction that has its messages.
"""

import contextlib
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import click

from tms.block import check_event_time
from tms.cli.message_files import CHUNK_BYTES, FORMS, FileMessage, form_in, read
from tms.cli.output import Format, Row
from tms.cli.parameters import FilesParameter, TopicParameter, session_command
from tms.cli.session import Session
from tms.client import transaction
from tms.client.batching import message_bytes
from tms.errors import Invalid, TMSError, TooLarge

if TYPE_CHECKING:
    import tms
    from tms.model.topic import TopicSettings

_STANDARD_INPUT = Path("-")
_TOLD = 20  # broken lines


class _Source(NamedTuple):
    """A file to import."""

    name: str
    form: str
    file: BinaryIO


class _Checked(NamedTuple):
    """A file without a broken line."""

    source: _Source
    group: str
    messages: int


@session_command("import")
def command(
    session: Session,
    topic: TopicParameter,
    files: FilesParameter = (),
    form: Annotated[
        str | None, "--format", click.Choice(FORMS), "[by each file's name, else ndjson]"
    ] = None,
    by_key: Annotated[bool, "Keys decide the partitions, not the files."] = False,
) -> None:
    """Publish the messages of FILES, or of standard input (also `-`), to TOPIC.

    They are what `tms export` or `tms spark archive` writes, or `tms consume --json` prints, or
    that as gzip. Ids and publish times are new. A file is imported whole, and once: again, it is
    skipped.

    \b
      tms import copies flights.ndjson
      tms consume flights -e --json | tms import copies --by-key
    """
    rows: list[Row] = []
    with session.bus() as bus, contextlib.ExitStack() as opened:
        settings = bus.describe_topic(topic).settings
        sources = [
            opened.enter_context(_opened(path, form)) for path in files or (_STANDARD_INPUT,)
        ]
        for checked in _check(sources, settings, by_key):
            new = _publish(bus, topic, checked, by_key)
            done = "imported" if new else "skipped, it was imported before:"
            session.say(f"{done} {checked.source.name}, {checked.messages:,} messages")
            rows.append(
                {
                    "file": checked.source.name,
                    "messages": checked.messages,
                    "imported": new,
                    "group": checked.group,
                }
            )
    if session.format is not Format.TABLE:
        session.show(rows, rows)


@contextlib.contextmanager
def _opened(path: Path, form: str | None) -> Iterator[_Source]:
    if path != _STANDARD_INPUT:
        with path.open("rb") as file:
            yield _Source(str(path), form_in(form, path, file), file)
        return
    with tempfile.TemporaryFile(prefix="tms-import-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, CHUNK_BYTES)
        yield _Source("standard input", form_in(form, path, file), file)


def _check(sources: list[_Source], settings: "TopicSettings", by_key: bool) -> list[_Checked]:
    """Read all files. Raises `Invalid`, which names the lines that are broken."""
    checked, broken, told = [], 0, list[str]()
    for source in sources:
        count, size, digest = 0, 0, _digest(source.file)
        for number, message in _messages(source):
            count += 1
            found = _checked_bytes(message, settings, by_key)
            if isinstance(found, int):
                size += found
                continue
            broken += 1
            if len(told) < _TOLD:
                told.append(f"{source.name}, line {number}: {found}")
        if size > transaction.TRANSACTION_BYTES:
            raise TooLarge(
                f"Nothing was imported: {source.name} has {size:,} bytes of messages, and a file "
                "is imported in one transaction, of "
                f"{transaction.TRANSACTION_BYTES:,} bytes at most.",
                next="split the file by lines, and import the parts in their order",
            )
        checked.append(_Checked(source, f"import.{digest}", count))
    if broken:
        more = f"\n… and {broken - len(told):,} more" if broken > len(told) else ""
        raise Invalid(
            f"Nothing was imported, because lines are broken: {broken:,}.\n"
            + "\n".join(told)
            + more,
            broken=broken,
            lines=told,
            next="correct or remove these lines, and import again",
        )
    return checked


def _messages(source: _Source) -> Iterator[tuple[int, FileMessage | Invalid]]:
    source.file.seek(0)
    try:
        yield from read(source.form, source.file)
    except Invalid as error:
        why = f"Nothing was imported of {source.name}. {error.message}"
        raise Invalid(why, **error.details) from error


def _digest(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()[:32]


def _checked_bytes(
    message: FileMessage | Invalid, settings: "TopicSettings", by_key: bool
) -> int | str:
    """The size of a message; a text with the fault if the message is invalid."""
    if isinstance(message, Invalid):
        return message.message
    try:
        size = message_bytes(
            message.value, message.key, message.headers, settings.message_bytes_max
        )
        check_event_time(message.event_time_ms)
    except TMSError as error:
        return error.message
    if by_key or message.partition is None or 0 <= message.partition < settings.partitions:
        return size
    return (
        f"the topic has partitions 0 to {settings.partitions - 1}, not {message.partition}; "
        "with --by-key the key decides"
    )


def _publish(bus: "tms.Bus", topic: str, checked: _Checked, by_key: bool) -> bool:
    """Import a file, unless it was before; whether it was not."""
    if bus.positions(topic, group=checked.group):
        return False
    with (
        bus.consumer(topic, start="latest", partitions=[0], group=checked.group) as token,
        bus.transaction() as tx,
    ):
        for _, message in _messages(checked.source):
            if isinstance(message, Invalid):
                raise Invalid(
                    f"{checked.source.name} was changed while it was imported; nothing of it was."
                )
            partition = None if by_key else message.partition
            cells = message.value, message.key, message.headers, partition
            tx.send(topic, *cells, None, message.event_time_ms)
        tx.ack(token)
    return True
