"""Files that survive power loss."""

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Make a file's bytes or a directory's entries survive power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
