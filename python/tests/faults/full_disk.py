"""A disk that can be filled and freed: a small file system, or else a limit on files."""

import contextlib
import resource
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 8 << 20


class SmallFileSystem:
    """A file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, left_bytes: int) -> None:
        """Take all space but about this much."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(64 << 10)):
                    pass
            except OSError:
                file.truncate(file.tell() - left_bytes)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


class SmallFiles:
    """A directory in which no file of a process, 0 for this one, may grow beyond the limit that
    `fill` sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process_id = 0
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, left_bytes: int) -> None:
        self._limit((left_bytes, self._before[1]))

    def free(self) -> None:
        self._limit(self._before)

    def _limit(self, limits: tuple[int, int]) -> None:
        resource.prlimit(self.process_id, resource.RLIMIT_FSIZE, limits)


SmallDisk = SmallFileSystem | SmallFiles


@contextlib.contextmanager
def small_disk(path: Path, mount: bool, disk_bytes: int = DISK_BYTES) -> Iterator[SmallDisk]:
    """A small disk at this path; with `mount` a real one, if this user may mount."""
    path.mkdir()
    if mount:
        command = ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            try:
                yield SmallFileSystem(path)
            finally:
                subprocess.run(["umount", "--lazy", str(path)], check=True)
            return
        warnings.warn(f"may not mount, limiting files instead: {done.stderr}", stacklevel=2)
    files = SmallFiles(path)
    try:
        yield files
    finally:
        with contextlib.suppress(ProcessLookupError):
            files.free()
