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
        """Back up everything as of one moment, while other calls continue; see `tms backup`. The
        directory is created if it does not exist; if it has a backup already, only new bytes are
        copied. A backup may take minutes.

        Raises `Conflict` for a store that cannot be backed up this way (HBase, a service of several
        workers), `Forbidden`, `ConfigError` for a directory with other content, `AlreadyRunning`
        while another backup is written there, `StorageFull`, `StorageUnavailable`, `Closed`. After
        an error the previous backup in the directory is still whole.
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
