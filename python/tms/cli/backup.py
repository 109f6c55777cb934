"""`tms backup` and `tms restore`: copies of everything in a store, as it was at one moment."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import click

from tms.api.backups import BackupsApi
from tms.cli.output import columns
from tms.cli.parameters import DryRunOption, session_command
from tms.cli.session import Session
from tms.cli.topics import time_text
from tms.client.backups import SHARE

_STANDARD_OUTPUT = Path("-")
_MANIFEST = ("id", "moment_ms", "files", "bytes")  # of a backup, in results


@session_command("backup")
def command(
    session: Session,
    target: Annotated[
        Path,
        "--to",
        click.Path(file_okay=False, allow_dash=True, path_type=Path),
        "A directory, which keeps the newest backup, or - for a tar archive.",
    ],
) -> None:
    """Back up everything as it is at one moment, also while the service runs.

    Topics, transactions, positions, groups, queues, delayed messages, tables, tokens and grants. Of
    the service, or with --data of a directory that no process has open. A second backup to the
    same directory copies only new files.

    \b
      tms backup --to /backups/tms
      tms backup --to - | ssh elsewhere 'tar -x -C /backups/tms'
    """
    from tms.runtime.throttle import Throttle
    from tms.runtime.version import VERSION
    from tms.store.backup.writer import back_up, stream

    with _images(session) as (source, share):
        pause = Throttle(session.clock, share, threading.Event()).pause
        if target == _STANDARD_OUTPUT:
            kept = stream(source, sys.stdout.buffer, VERSION, pause)
        else:
            kept = back_up(source, target, VERSION, pause)
    manifest = kept.manifest
    session.say(
        f"backup of {time_text(manifest.moment_ms)}: {manifest.files:,} files, "
        f"{manifest.bytes:,} bytes; copied {kept.copied_files:,} files, {kept.copied_bytes:,} bytes"
    )
    if target != _STANDARD_OUTPUT:
        session.show_result(
            columns(manifest, *_MANIFEST) | columns(kept, "copied_files", "copied_bytes")
        )


@contextmanager
def _images(session: Session) -> Iterator[tuple[BackupsApi, float]]:
    """The images of the target's store, and the share of time in which they may be read."""
    from tms.store.backup.images import Images
    from tms.store.leveldb import LevelDBStore

    url, data = session.target()
    if url is not None:
        with closing(session.transport()) as transport:
            yield transport.backups, SHARE
    else:
        with closing(LevelDBStore(data or Path(), create=False)) as store:
            yield Images(store, session.clock), 1.0


@session_command("restore")
def restore(
    session: Session,
    backup: Annotated[
        Path,
        "--from",
        click.Path(file_okay=False, path_type=Path),
        "The directory that `tms backup --to` was given.",
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Make a data directory of a backup. Needs --data, a new or empty directory.

    Every checksum is compared; nothing is restored of a backup that is damaged or not whole. With
    --dry-run the backup is only read, and no directory is needed.
    """
    from tms.store.backup import restoring

    data: Path | None = None
    if dry_run:
        manifest = restoring.verify(backup)
        did = "the backup is whole: it is"
    else:
        _, data = session.target()
        if data is None:
            raise click.UsageError("restore makes a data directory: name a new one with --data.")
        manifest = restoring.restore(backup, data)
        did = f"restored to {data}: the backup"
    session.say(
        f"{did} of {time_text(manifest.moment_ms)}, {manifest.files:,} files, "
        f"{manifest.bytes:,} bytes"
    )
    session.show_result(
        columns(manifest, *_MANIFEST) | {"data": None if data is None else str(data)}
    )
