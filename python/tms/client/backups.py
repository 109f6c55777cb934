"""The backup of everything in a bus's store to a directory."""

import os
import threading
from pathlib import Path

from tms.client.calls import BusCalls
from tms.errors import Closed, Invalid
from tms.model.backup import BackupInfo

SHARE = 1 / 2  # of the time: publishers keep the rest


class BackupCalls(BusCalls):
    """The part of a bus that makes backups. Thread-safe."""

    def backup(self, directory: str | os.PathLike[str]) -> BackupInfo:
        """Back up everything as it is at one moment, while others go on; see `tms backup`. The
        directory is made if it is missing; in one that has a backup already, only what is new is
        copied. It may take minutes.

        Raises `Conflict` for a store that is not backed up so (HBase, a service of several
        workers), `Forbidden`, `ConfigError` for a directory of something else, `AlreadyRunning`
        while another backup is made there, `StorageFull`, `StorageUnavailable`, `Closed`: then the
        backup that was there before is still whole.
        """
        from tms.runtime.throttle import Throttle
        from tms.runtime.version import VERSION
        from tms.store.backup.writer import back_up

        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise Invalid(
                f"directory is the path of a directory, got {directory!r:.80}.", field="directory"
            )
        throttle = Throttle(self._clock, SHARE, threading.Event())

        def pause() -> None:
            if self._closed:
                raise Closed("The bus was closed while it made a backup.")
            throttle.pause()

        kept = back_up(self._transport.backups, Path(directory), VERSION, pause)
        manifest = kept.manifest
        return BackupInfo(
            manifest.id,
            manifest.moment_ms,
            manifest.files,
            manifest.bytes,
            kept.copied_files,
            kept.copied_bytes,
        )
